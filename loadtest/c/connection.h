// One client of worker.c, and how it is answered.
#ifndef CONNECTION_H
#define CONNECTION_H

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "buffer.h"
#include "wheel.h"

enum phase { READING, STREAMING, DELAYED };

struct connection {
    struct timer timer;  // the first member
    int fd;
    enum phase phase;
    int chunks_left;
    int num_blocks;  // computed for another worker, which learns their address
    bool is_chat, wants_usage;
    struct buffer in, out;
};

static int epoll_fd;

// --- writing; false means that the connection is lost ---

static inline void watch(struct connection *c) {
    struct epoll_event event = {.events = EPOLLIN | (c->out.length ? EPOLLOUT : 0), .data.ptr = c};
    epoll_ctl(epoll_fd, EPOLL_CTL_MOD, c->fd, &event);
}

static inline bool flush_out(struct connection *c) {
    ssize_t sent = send(c->fd, c->out.data, c->out.length, MSG_NOSIGNAL);
    if (sent < 0) {
        return errno == EAGAIN;
    }
    consume(&c->out, sent);
    watch(c);
    return true;
}

// At once where the socket takes it; the rest waits in `out`.
static inline bool put(struct connection *c, const char *data, size_t length) {
    if (c->out.length == 0) {
        ssize_t sent = send(c->fd, data, length, MSG_NOSIGNAL);
        if (sent < 0 && errno != EAGAIN) {
            return false;
        }
        sent = sent < 0 ? 0 : sent;
        if ((size_t)sent == length) {
            return true;
        }
        data += sent;
        length -= sent;
    }
    append(&c->out, data, length);
    watch(c);
    return true;
}

static inline bool reply(struct connection *c, int status, const char *type, const char *body, size_t length) {
    char answer[8192];
    int head = snprintf(
        answer, 512, "HTTP/1.1 %d %s\r\ncontent-type: %s\r\ncontent-length: %zu\r\nserver: uvicorn\r\n\r\n",
        status, status == 200 ? "OK" : "Not Found", type, length);
    if (length > sizeof answer - head) {
        return put(c, answer, head) && put(c, body, length);
    }
    memcpy(answer + head, body, length);  // one write for head and body
    return put(c, answer, head + length);
}

static inline bool reply_json(struct connection *c, const char *body) {
    return reply(c, 200, "application/json", body, strlen(body));
}

static inline bool reply_not_found(struct connection *c) {
    const char *body = "{\"detail\":\"Not Found\"}";
    return reply(c, 404, "application/json", body, strlen(body));
}

#endif
