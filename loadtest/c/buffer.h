// Bytes that grow, and the clock: what worker.c and loadgen.c share.
#ifndef BUFFER_H
#define BUFFER_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct buffer {
    char *data;
    size_t length, capacity;
};

static inline uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000ull + now.tv_nsec;
}

static inline void reserve(struct buffer *buffer, size_t room) {
    if (buffer->capacity - buffer->length >= room) {
        return;
    }
    buffer->capacity = (buffer->length + room) * 2;
    buffer->data = realloc(buffer->data, buffer->capacity);
    if (buffer->data == NULL) {
        abort();
    }
}

static inline void consume(struct buffer *buffer, size_t length) {
    memmove(buffer->data, buffer->data + length, buffer->length - length);
    buffer->length -= length;
}

static inline void append(struct buffer *buffer, const void *data, size_t length) {
    reserve(buffer, length);
    memcpy(buffer->data + buffer->length, data, length);
    buffer->length += length;
}

#endif
