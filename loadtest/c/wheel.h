// A timer wheel of milliseconds: setting and cancelling cost a few instructions, whatever the number.
#ifndef WHEEL_H
#define WHEEL_H

#include <stdbool.h>
#include <stdint.h>

enum { WHEEL_SLOTS = 8192 };  // one per millisecond: the longest delay

// The first member of what is timed.
struct timer {
    struct timer *next, *previous;  // in its slot, while is_set
    bool is_set;
};

static struct timer wheel[WHEEL_SLOTS];  // heads of circular lists
static int num_timed;
static uint64_t wheel_ms;  // the slot that was served last

static inline void open_wheel(void) {
    for (int i = 0; i < WHEEL_SLOTS; i++) {
        wheel[i].next = wheel[i].previous = &wheel[i];
    }
}

static inline void cancel_timer(struct timer *timer) {
    if (timer->is_set) {
        timer->previous->next = timer->next;
        timer->next->previous = timer->previous;
        timer->is_set = false;
        num_timed--;
    }
}

static inline void set_timer(struct timer *timer, int delay_ms) {
    int delay = delay_ms < 1 ? 1 : delay_ms < WHEEL_SLOTS ? delay_ms : WHEEL_SLOTS - 1;
    struct timer *head = &wheel[(wheel_ms + delay) % WHEEL_SLOTS];
    timer->next = head;
    timer->previous = head->previous;
    head->previous->next = timer;
    head->previous = timer;
    timer->is_set = true;
    num_timed++;
}

static inline void fire_slot(struct timer *head, void (*fire)(struct timer *)) {
    struct timer due;
    if (head->next == head) {
        return;
    }
    // Into a list apart: a timer that is set again must not come up twice.
    due.next = head->next;
    due.previous = head->previous;
    due.next->previous = due.previous->next = &due;
    head->next = head->previous = head;
    while (due.next != &due) {
        struct timer *timer = due.next;
        cancel_timer(timer);
        fire(timer);
    }
}

// Fire what is due. Without a timer the wheel only keeps up with the clock.
static inline void turn_wheel(uint64_t now_ms, void (*fire)(struct timer *)) {
    while (num_timed > 0 && wheel_ms < now_ms) {
        wheel_ms++;
        fire_slot(&wheel[wheel_ms % WHEEL_SLOTS], fire);
    }
    if (num_timed == 0) {
        wheel_ms = now_ms;
    }
}

#endif
