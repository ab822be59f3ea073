// A fake OpenAI/vLLM worker that costs a few microseconds per request: one thread, epoll, a timer wheel.
//
// worker PORT [-n chunks=64] [-g gap_ms=10] [-f ttft_ms=0] [-t delay_ms=0] [-m model=m] [-k num_gpu_blocks=65536]
//             [-e JSON] [-r 1] [-u 1] [-l FILE]
//
//   PORT  on loopback; 0 takes a free one. "ready PORT" is printed when it listens.
//   -n -g -f  a stream's number of chunks, the time between two, the time before the first
//   -t    delay of an answer that is not streamed
//   -e    body of /kv_event_sources; without it the path answers 404
//   -r 1  answer .../render with made-up token ids
//   -u 1  end a stream with usage where `include_usage` asks for it
//   -l    append every request to FILE
//
// A body with `do_remote_decode` is answered with `kv_transfer_params`, as vLLM's NixlConnector does.
//
// Each streamed piece of text begins with T and 20 digits: CLOCK_MONOTONIC in ns when it was written.
// A reader on the same host subtracts it from its own clock and has the one-way latency.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "answers.h"
#include "buffer.h"
#include "connection.h"
#include "http.h"
#include "wheel.h"

enum {
    MIN_ROOM = 65536,    // what a read should find free
    MAX_HEAD = 65536,
    MAX_EVENTS = 256,
    BYTES_PER_BLOCK = 64,  // of a body: 16 tokens
    MAX_BLOCKS = 8192,
};

static struct {
    int port, num_chunks, gap_ms, ttft_ms, delay_ms, num_gpu_blocks;
    const char *model, *event_sources;
    bool can_render, reports_usage;
    FILE *log;
} options = {.num_chunks = 64, .gap_ms = 10, .num_gpu_blocks = 65536, .model = "m"};

static struct { unsigned long long requests, streams, aborted, renders; } counts;

static double start_time_s;

// --- answers of a model ---

// The next piece of a stream, or its end; one write each.
static bool step(struct connection *c) {
    char event[1024], chunk[1100];
    int length;
    bool is_last = c->chunks_left == 0;
    if (is_last) {
        c->phase = READING;
        length = snprintf(event, sizeof event, c->is_chat ? CHAT_END : TEXT_END, options.model,
                          c->wants_usage ? USAGE_CHUNK : "");
    } else {
        c->chunks_left--;
        length = snprintf(event, sizeof event, c->is_chat ? CHAT_CHUNK : TEXT_CHUNK, options.model,
                          (unsigned long long)now_ns());
        set_timer(&c->timer, options.gap_ms);
    }
    const char *end = is_last ? "0\r\n\r\n" : "";
    length = snprintf(chunk, sizeof chunk, "%x\r\n%.*s\r\n%s", length, length, event, end);
    return put(c, chunk, length);
}

static bool begin_stream(struct connection *c) {
    counts.streams++;
    c->phase = STREAMING;
    c->chunks_left = options.num_chunks;
    if (!put(c, STREAM_HEAD, strlen(STREAM_HEAD))) {
        return false;
    }
    if (options.ttft_ms == 0) {
        return step(c);
    }
    set_timer(&c->timer, options.ttft_ms);
    return true;
}

static bool has(const char *body, size_t length, const char *text) {
    return memmem(body, length, text, strlen(text)) != NULL;
}

static bool answer_whole(struct connection *c) {
    static char ids[MAX_BLOCKS * 6], transfer[sizeof ids + 512], answer[sizeof transfer + 1024];
    int used = 0;
    for (int i = 1; i <= c->num_blocks; i++) {
        used += sprintf(ids + used, i == 1 ? "%d" : ",%d", i);
    }
    transfer[0] = 0;
    if (c->num_blocks > 0) {
        snprintf(transfer, sizeof transfer, TRANSFER, ids, options.port, options.port);
    }
    snprintf(answer, sizeof answer, c->is_chat ? CHAT_ANSWER : TEXT_ANSWER, options.model, transfer);
    return reply_json(c, answer);
}

static int blocks_of(size_t length) {
    return length / BYTES_PER_BLOCK < MAX_BLOCKS ? length / BYTES_PER_BLOCK + 1 : MAX_BLOCKS;
}

static bool generate(struct connection *c, const char *path, const char *body, size_t length) {
    c->is_chat = strncmp(path, "/v1/chat/", 9) == 0;
    if (has(body, length, "\"stream\":true") || has(body, length, "\"stream\": true")) {
        c->wants_usage = options.reports_usage && has(body, length, "\"include_usage\":true");
        return begin_stream(c);
    }
    c->num_blocks = has(body, length, "\"do_remote_decode\":true") ? blocks_of(length) : 0;
    if (options.delay_ms == 0) {
        return answer_whole(c);
    }
    c->phase = DELAYED;
    set_timer(&c->timer, options.delay_ms);
    return true;
}

// About a token per four bytes of the body, the same ids for the same bytes.
static bool render(struct connection *c, const char *body, size_t length) {
    counts.renders++;
    if (!options.can_render) {
        return reply_not_found(c);
    }
    size_t num_tokens = length / 4;
    char *answer = malloc(num_tokens * 8 + 256);
    if (answer == NULL) {
        return false;
    }
    size_t used = sprintf(answer, "{\"request_id\":\"render-1\",\"token_ids\":[0");
    for (size_t i = 0; i < num_tokens; i++) {
        uint32_t bytes;
        memcpy(&bytes, body + i * 4, sizeof bytes);
        used += sprintf(answer + used, ",%u", (bytes * 2654435761u) >> 17);
    }
    used += sprintf(answer + used, "],\"sampling_params\":{},\"model\":\"%s\"}", options.model);
    bool is_sent = reply(c, 200, "application/json", answer, used);
    free(answer);
    return is_sent;
}

// --- pages about the engine itself ---

static bool is_one_of(const char *path, const char *const *paths) {
    for (; *paths != NULL; paths++) {
        if (strcmp(path, *paths) == 0) {
            return true;
        }
    }
    return false;
}

static bool describe(struct connection *c, const char *path) {
    static const char *const health[] = {"/health", "/ping", "/health_generate", NULL};
    static const char *const info[] = {
        "/server_info", "/get_server_info", "/get_model_info", "/model_info", NULL};
    static const char *const loads[] = {"/get_load", "/v1/loads", "/load", NULL};
    char body[4096];
    if (is_one_of(path, health)) {
        return reply_json(c, "");
    }
    if (strcmp(path, "/metrics") == 0) {
        int used = snprintf(body, sizeof body, METRICS, options.model, num_timed, options.num_gpu_blocks,
                            start_time_s);
        return reply(c, 200, "text/plain; version=0.0.4", body, used);
    }
    if (strcmp(path, "/kv_event_sources") == 0 && options.event_sources != NULL) {
        return reply_json(c, options.event_sources);
    }
    if (strcmp(path, "/version") == 0) {
        return reply_json(c, "{\"version\":\"0.23.0\"}");
    }
    if (is_one_of(path, loads)) {
        return reply_json(c, LOADS);
    }
    if (strcmp(path, "/v1/models") == 0) {
        snprintf(body, sizeof body, MODELS, options.model);
    } else if (is_one_of(path, info)) {
        snprintf(body, sizeof body, SERVER_INFO, options.model);
    } else if (strcmp(path, "/stats") == 0) {
        snprintf(body, sizeof body, STATS, counts.requests, counts.streams, counts.aborted, counts.renders);
    } else {
        return reply_not_found(c);
    }
    return reply_json(c, body);
}

// --- requests ---

static void log_request(const char *head, const char *body, size_t length) {
    fprintf(options.log, "=== %llu port %d\n%s", (unsigned long long)now_ns() / 1000, options.port, head);
    fwrite(body, 1, length < 4000 ? length : 4000, options.log);
    fputc('\n', options.log);
    fflush(options.log);
}

static bool ends_with(const char *text, const char *end) {
    size_t length = strlen(text), end_length = strlen(end);
    return length >= end_length && strcmp(text + length - end_length, end) == 0;
}

// `head` is terminated.
static bool handle(struct connection *c, const char *head, const char *body, size_t length) {
    char method[16], path[128];
    counts.requests++;
    if (options.log != NULL) {
        log_request(head, body, length);
    }
    if (sscanf(head, "%15s %127[^ ?]", method, path) != 2) {
        return false;
    }
    if (ends_with(path, "/render")) {
        return render(c, body, length);
    }
    bool is_generation = strcmp(path, "/v1/chat/completions") == 0 || strcmp(path, "/v1/completions") == 0 ||
                         strcmp(path, "/generate") == 0;
    if (is_generation && strcmp(method, "POST") == 0) {
        return generate(c, path, body, length);
    }
    return describe(c, path);
}

// One request at the beginning of `in`. Returns how many bytes it took, 0 if it is not complete.
static size_t take_request(struct connection *c, size_t head_length, bool *is_open) {
    char *head = c->in.data, *body = head + head_length;
    size_t available = c->in.length - head_length;
    head[head_length - 1] = 0;
    const char *length = header(head, "content-length:");
    const char *coding = header(head, "transfer-encoding:");
    size_t taken = length != NULL ? strtoull(length, NULL, 10) : 0;
    struct buffer joined = {0};
    if (coding != NULL) {
        taken = join_chunks(body, available, &joined);
    }
    bool is_complete = coding != NULL ? taken > 0 : available >= taken;
    if (is_complete && coding != NULL) {
        *is_open = handle(c, head, joined.data != NULL ? joined.data : "", joined.length);
    } else if (is_complete) {
        *is_open = handle(c, head, body, taken);
    }
    free(joined.data);
    if (!is_complete && available == 0 && header(head, "expect:") != NULL) {
        *is_open = put(c, "HTTP/1.1 100 Continue\r\n\r\n", 25);
    }
    head[head_length - 1] = '\n';
    return is_complete ? head_length + taken : 0;
}

// Requests that have arrived in full, as long as none keeps the connection busy.
static bool process(struct connection *c) {
    bool is_open = true;
    while (is_open && c->in.length > 0 && c->phase == READING) {
        const char *end = memmem(c->in.data, c->in.length, "\r\n\r\n", 4);
        if (end == NULL) {
            return c->in.length <= MAX_HEAD;
        }
        size_t taken = take_request(c, end + 4 - c->in.data, &is_open);
        if (taken == 0) {
            return is_open;
        }
        consume(&c->in, taken);
    }
    return is_open;
}

// --- connections ---

static void accept_all(int listener) {
    int fd, one = 1;
    while ((fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK)) >= 0) {
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        struct connection *c = calloc(1, sizeof *c);
        if (c == NULL) {
            abort();
        }
        c->fd = fd;
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = c};
        epoll_ctl(epoll_fd, EPOLL_CTL_ADD, fd, &event);
    }
}

static void close_connection(struct connection *c) {
    if (c->phase != READING) {
        counts.aborted++;
    }
    cancel_timer(&c->timer);
    close(c->fd);
    free(c->in.data);
    free(c->out.data);
    free(c);
}

static bool receive(struct connection *c) {
    reserve(&c->in, MIN_ROOM);
    ssize_t length = recv(c->fd, c->in.data + c->in.length, c->in.capacity - c->in.length, 0);
    if (length <= 0) {
        return length < 0 && errno == EAGAIN;
    }
    c->in.length += length;
    return process(c);
}

static bool serve(struct connection *c, uint32_t events) {
    if ((events & EPOLLOUT) && !flush_out(c)) {
        return false;
    }
    return !(events & (EPOLLIN | EPOLLHUP | EPOLLERR)) || receive(c);
}

static void timer_fired(struct timer *timer) {
    struct connection *c = (struct connection *)timer;
    bool is_open;
    if (c->phase == DELAYED) {
        c->phase = READING;
        is_open = answer_whole(c);
    } else {
        is_open = step(c);
    }
    if (!is_open || (c->phase == READING && !process(c))) {
        close_connection(c);
    }
}

static void run(int listener) {
    struct epoll_event events[MAX_EVENTS];
    wheel_ms = now_ns() / 1000000;
    while (true) {
        int num = epoll_wait(epoll_fd, events, MAX_EVENTS, num_timed > 0 ? 1 : -1);
        uint64_t now_ms = now_ns() / 1000000;
        if (num_timed == 0) {
            wheel_ms = now_ms;
        }
        for (int i = 0; i < num; i++) {
            struct connection *c = events[i].data.ptr;
            if (c == NULL) {
                accept_all(listener);
            } else if (!serve(c, events[i].events)) {
                close_connection(c);
            }
        }
        turn_wheel(now_ms, timer_fired);
    }
}

// --- start ---

static int listen_on_loopback(void) {
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), one = 1;
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    struct sockaddr_in address = {
        .sin_family = AF_INET, .sin_port = htons(options.port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    if (bind(listener, (struct sockaddr *)&address, length) < 0 || listen(listener, 4096) < 0) {
        perror("worker: cannot listen");
        exit(1);
    }
    getsockname(listener, (struct sockaddr *)&address, &length);
    options.port = ntohs(address.sin_port);
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = NULL};
    epoll_fd = epoll_create1(0);
    epoll_ctl(epoll_fd, EPOLL_CTL_ADD, listener, &event);
    return listener;
}

static void set_option(char name, char *value) {
    switch (name) {
    case 'n': options.num_chunks = atoi(value); break;
    case 'g': options.gap_ms = atoi(value); break;
    case 'f': options.ttft_ms = atoi(value); break;
    case 't': options.delay_ms = atoi(value); break;
    case 'm': options.model = value; break;
    case 'k': options.num_gpu_blocks = atoi(value); break;
    case 'e': options.event_sources = value; break;
    case 'r': options.can_render = atoi(value) != 0; break;
    case 'u': options.reports_usage = atoi(value) != 0; break;
    case 'l': options.log = fopen(value, "a"); break;
    default:
        fprintf(stderr, "worker: no option -%c\n", name);
        exit(2);
    }
}

int main(int argc, char **argv) {
    struct timespec now;
    if (argc < 2) {
        fprintf(stderr, "usage: worker PORT [-n chunks] [-g gap_ms] ..., see the head of worker.c\n");
        return 2;
    }
    signal(SIGPIPE, SIG_IGN);
    options.port = atoi(argv[1]);
    for (int i = 2; i + 1 < argc; i += 2) {
        set_option(argv[i][1], argv[i + 1]);
    }
    open_wheel();
    clock_gettime(CLOCK_REALTIME, &now);
    start_time_s = now.tv_sec + now.tv_nsec / 1e9;
    int listener = listen_on_loopback();
    printf("ready %d\n", options.port);
    fflush(stdout);
    run(listener);
}
