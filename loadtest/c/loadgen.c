// Closed-loop HTTP/1.1 load on a loopback port, and what it cost the processes in between.
//
// loadgen PORT [-c connections=8] [-d seconds=5] [-w warm_up_seconds=1] [-z think_ms=0] [-s stream 0|1]
//              [-p path] [-m model=m] [-a bearer] [-P pid,pid,...] [-j 1]
//              [-B FILE [-o once 0|1] | -b prompt_bytes=64 -k prefixes=16 -M messages=0 -N new_bytes=0]
//
//   -z  pause before a connection's next request, half to one and a half times as long
//   -P  read CPU time and memory of these processes, with their children
//   -d  the measured part is longer where no answer came yet, by MAX_LATE_S at most
//   -j  print one JSON object instead of the line for people
//   -B  bodies from FILE (bodies.h); connection i of n sends the bodies i, i + n, i + 2n, ... and starts
//       over when they are used up. Without it prompts are made of a few words, after one of -k prefixes:
//       as one text, or with -M as a conversation of so many messages plus a new one of -N bytes.
//   -o  1: send no body twice. The warm-up ends with half of a connection's bodies at the latest, the
//       measured part with the other half: however fast the server is, it only shortens them.
//
// CPU time is what the scheduler accounts to each thread, in ns; where the kernel does not report it, the
// clock ticks of the process (usually 10 ms).
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "bodies.h"
#include "buffer.h"
#include "histogram.h"
#include "processes.h"
#include "words.h"

enum {
    IN_CAPACITY = 262144,
    MAX_EVENTS = 256,
    MAX_LATE_S = 20,
    STAMP_LENGTH = 22,  // "T and 20 digits, see worker.c
};

static struct {
    int port, num_connections, think_ms;
    double seconds, warm_up_seconds;
    bool is_stream, is_json, is_once;
    const char *path, *pids, *bearer, *bodies;
    struct wording wording;
} options = {.num_connections = 8,
             .seconds = 5,
             .warm_up_seconds = 1,
             .path = "/v1/chat/completions",
             .pids = "",
             .wording = {.model = "m", .num_prefixes = 16, .prompt_bytes = 64}};

// What is known of the answer under way.
struct answer {
    int status;
    bool has_head, is_chunked, closes, is_last_chunk;
    long body_left;   // of a body with a length; a huge number where it ends with the connection
    long chunk_left;  // of a chunk, with the line end behind it
    uint64_t first_byte_ns;
};

struct connection {
    int fd, index;
    bool is_sent, is_thinking;
    uint64_t sent_ns, wake_ns;
    size_t num_sent, num_flushed;
    struct buffer out;
    size_t in_length, carry_length;
    struct answer answer;
    char carry[STAMP_LENGTH];  // what may be the beginning of a stamp
    char in[IN_CAPACITY];
};

static struct connection **connections;
static struct bodies bodies;
static struct histogram latency, first_byte, one_way;
static uint64_t num_made, num_errors;
static size_t bodies_end = SIZE_MAX;  // of those that may be sent now
static bool is_measuring, is_used_up;
static int epoll_fd;

static const long UNTIL_CLOSED = 1l << 60;

// --- requests ---

static void append_head(struct buffer *out, size_t body_bytes) {
    char head[1024];
    char authorization[512] = "";
    if (options.bearer != NULL) {
        snprintf(authorization, sizeof authorization, "authorization: Bearer %s\r\n", options.bearer);
    }
    int length = snprintf(head, sizeof head,
                          "POST %s HTTP/1.1\r\nhost: 127.0.0.1:%d\r\nuser-agent: loadgen\r\naccept: */*\r\n%s"
                          "content-type: application/json\r\ncontent-length: %zu\r\n\r\n",
                          options.path, options.port, authorization, body_bytes);
    append(out, head, length);
}

static void build_request(struct connection *c) {
    c->out.length = 0;
    if (options.bodies == NULL) {
        static struct buffer body;
        body.length = 0;
        make_body(&options.wording, num_made++, &body);
        append_head(&c->out, body.length);
        append(&c->out, body.data, body.length);
        return;
    }
    size_t number = c->index + c->num_sent * options.num_connections;
    if (number + 2 * options.num_connections >= bodies_end) {  // one more may be sent before it is seen
        is_used_up = true;
    }
    number %= bodies.num_bodies;
    append_head(&c->out, body_length(&bodies, number));
    append_body(&bodies, number, &c->out);
}

// --- connections ---

static void watch(struct connection *c, uint32_t events) {
    struct epoll_event event = {.events = events, .data.ptr = c};
    epoll_ctl(epoll_fd, EPOLL_CTL_MOD, c->fd, &event);
}

static void open_connection(struct connection *c) {
    int one = 1;
    struct sockaddr_in address = {
        .sin_family = AF_INET, .sin_port = htons(options.port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct epoll_event event = {.events = EPOLLIN | EPOLLOUT, .data.ptr = c};
    c->fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    connect(c->fd, (struct sockaddr *)&address, sizeof address);  // a failure shows when it is written to
    epoll_ctl(epoll_fd, EPOLL_CTL_ADD, c->fd, &event);
    c->in_length = 0;
    c->is_sent = c->is_thinking = false;
}

static void reopen(struct connection *c, bool is_error) {
    if (is_error && is_measuring) {
        num_errors++;
    }
    close(c->fd);
    open_connection(c);
}

static void flush_out(struct connection *c) {
    while (c->num_flushed < c->out.length) {
        ssize_t sent = send(c->fd, c->out.data + c->num_flushed, c->out.length - c->num_flushed, MSG_NOSIGNAL);
        if (sent < 0) {
            watch(c, EPOLLIN | EPOLLOUT);
            return;
        }
        c->num_flushed += sent;
    }
    watch(c, EPOLLIN);
}

static void send_request(struct connection *c) {
    build_request(c);
    c->num_sent++;
    c->num_flushed = c->carry_length = 0;
    c->answer = (struct answer){.body_left = UNTIL_CLOSED};
    c->is_sent = true;
    c->is_thinking = false;
    c->sent_ns = now_ns();
    flush_out(c);
}

// --- answers ---

static void answered(struct connection *c) {
    uint64_t now = now_ns();
    c->is_sent = false;
    if (is_measuring && c->answer.status != 200) {
        num_errors++;
    } else if (is_measuring) {
        record(&latency, (now - c->sent_ns) / 1000);
        record(&first_byte, (c->answer.first_byte_ns - c->sent_ns) / 1000);
    }
    if (c->answer.closes) {
        reopen(c, false);
    } else if (options.think_ms > 0) {
        c->is_thinking = true;
        c->wake_ns = now + (uint64_t)(options.think_ms * 1e6 * (0.5 + drand48()));
    } else {
        send_request(c);
    }
}

// Stamps may be cut by the ends of chunks and reads: what may become one waits for the next piece.
static void read_stamps(struct connection *c, const char *data, size_t length) {
    static char joined[IN_CAPACITY + STAMP_LENGTH];
    uint64_t now = now_ns();
    memcpy(joined, c->carry, c->carry_length);
    memcpy(joined + c->carry_length, data, length);
    const char *at = joined, *end = joined + c->carry_length + length, *found;
    while ((found = memmem(at, end - at, "\"T0", 3)) != NULL && end - found >= STAMP_LENGTH) {
        uint64_t written = strtoull(found + 2, NULL, 10);
        if (is_measuring) {
            record(&one_way, now > written ? (now - written) / 1000 : 0);
        }
        at = found + STAMP_LENGTH;
    }
    const char *rest = found != NULL ? found : end - at < 2 ? at : end - 2;
    c->carry_length = end - rest;
    memcpy(c->carry, rest, c->carry_length);
}

static void read_header(struct answer *answer, const char *line) {
    if (strncasecmp(line, "content-length:", 15) == 0) {
        answer->body_left = atol(line + 15);
    } else if (strncasecmp(line, "transfer-encoding: chunked", 26) == 0) {
        answer->is_chunked = true;
    } else if (strncasecmp(line, "connection: close", 17) == 0) {
        answer->closes = true;
    }
}

static void drop_in(struct connection *c, size_t length) {
    memmove(c->in, c->in + length, c->in_length - length);
    c->in_length -= length;
}

// False until the head is complete; an interim one (100) is skipped.
static bool read_head(struct connection *c) {
    struct answer *answer = &c->answer;
    while (!answer->has_head) {
        const char *end = memmem(c->in, c->in_length, "\r\n\r\n", 4);
        if (end == NULL) {
            return false;
        }
        answer->status = atoi(c->in + 9);
        for (const char *line = c->in; line < end; line = (const char *)memchr(line, '\n', end + 2 - line) + 1) {
            read_header(answer, line);
        }
        drop_in(c, end + 4 - c->in);
        answer->has_head = answer->status != 100;
        answer->first_byte_ns = now_ns();
    }
    return true;
}

// A piece of the chunk under way. Returns how many of `length` bytes belong to it.
static size_t read_chunk(struct connection *c, const char *data, size_t length) {
    size_t left = c->answer.chunk_left, taken = length < left ? length : left;
    size_t text_left = left > 2 ? left - 2 : 0;  // the rest is its line end
    if (options.is_stream && text_left > 0) {
        read_stamps(c, data, taken < text_left ? taken : text_left);
    }
    c->answer.chunk_left -= taken;
    return taken;
}

// True when the last chunk has been read.
static bool read_chunks(struct connection *c) {
    struct answer *answer = &c->answer;
    size_t at = 0;
    bool is_over = false;
    while (at < c->in_length && !is_over) {
        if (answer->chunk_left == 0) {
            const char *line_end = memmem(c->in + at, c->in_length - at, "\r\n", 2);
            if (line_end == NULL) {
                break;
            }
            long size = strtol(c->in + at, NULL, 16);
            at = line_end + 2 - c->in;
            answer->is_last_chunk = size == 0;
            answer->chunk_left = size + 2;
        }
        at += read_chunk(c, c->in + at, c->in_length - at);
        is_over = answer->is_last_chunk && answer->chunk_left == 0;
    }
    drop_in(c, at);
    return is_over;
}

// True when the answer is complete.
static bool read_answer(struct connection *c) {
    if (!read_head(c)) {
        return false;
    }
    if (c->answer.is_chunked) {
        return read_chunks(c);
    }
    size_t left = c->answer.body_left, taken = c->in_length < left ? c->in_length : left;
    if (options.is_stream) {
        read_stamps(c, c->in, taken);
    }
    c->answer.body_left -= taken;
    drop_in(c, taken);
    return c->answer.body_left == 0;
}

static void lost(struct connection *c) {
    bool ends_with_connection = c->answer.has_head && c->answer.body_left > UNTIL_CLOSED / 2;
    if (c->is_sent && ends_with_connection && !c->answer.is_chunked) {
        c->answer.closes = true;
        answered(c);
    } else {
        reopen(c, c->is_sent);
    }
}

static void receive(struct connection *c) {
    ssize_t length = recv(c->fd, c->in + c->in_length, sizeof c->in - c->in_length, 0);
    if (length < 0 && errno == EAGAIN) {
        return;
    }
    if (length <= 0) {
        lost(c);
        return;
    }
    c->in_length += length;
    if (c->is_sent && read_answer(c)) {
        answered(c);
    }
}

static void serve(struct connection *c, uint32_t events) {
    if ((events & EPOLLOUT) && c->is_sent) {
        flush_out(c);
    } else if ((events & EPOLLOUT) && !c->is_thinking && !(events & EPOLLERR)) {
        send_request(c);
    }
    if (events & (EPOLLIN | EPOLLERR | EPOLLHUP)) {
        receive(c);
    }
}

// --- the run ---

struct totals {
    double seconds, cpu_us, own_cpu_us;
};

static double own_cpu_us(void) {
    struct timespec used;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
    return used.tv_sec * 1e6 + used.tv_nsec / 1e3;
}

static void wake_thinkers(void) {
    uint64_t now = now_ns();
    for (int i = 0; i < options.num_connections; i++) {
        if (connections[i]->is_thinking && connections[i]->wake_ns <= now) {
            send_request(connections[i]);
        }
    }
}

static bool is_over(uint64_t end_ns) {
    uint64_t now = now_ns();
    bool waits = is_measuring && latency.num == 0 && num_errors == 0;
    return is_used_up || now >= end_ns + (waits ? MAX_LATE_S * 1000000000ull : 0);
}

static void serve_until(uint64_t end_ns, size_t end_of_bodies) {
    struct epoll_event events[MAX_EVENTS];
    bodies_end = options.is_once ? end_of_bodies : SIZE_MAX;
    is_used_up = false;
    while (!is_over(end_ns)) {
        int num = epoll_wait(epoll_fd, events, MAX_EVENTS, options.think_ms > 0 ? 1 : 100);
        for (int i = 0; i < num; i++) {
            serve(events[i].data.ptr, events[i].events);
        }
        if (options.think_ms > 0) {
            wake_thinkers();
        }
    }
}

static struct totals measure(void) {
    epoll_fd = epoll_create1(0);
    connections = calloc(options.num_connections, sizeof *connections);
    for (int i = 0; i < options.num_connections; i++) {
        connections[i] = calloc(1, sizeof **connections);
        connections[i]->index = i;
        open_connection(connections[i]);
    }
    serve_until(now_ns() + (uint64_t)(options.warm_up_seconds * 1e9), bodies.num_bodies / 2);
    find_processes(options.pids);  // now: some start their threads and children with the first request
    is_measuring = true;
    double cpu_us = processes_cpu_us(), own_us = own_cpu_us();
    uint64_t start = now_ns();
    serve_until(start + (uint64_t)(options.seconds * 1e9), bodies.num_bodies);
    double seconds = (now_ns() - start) / 1e9;
    return (struct totals){seconds, processes_cpu_us() - cpu_us, own_cpu_us() - own_us};
}

static void print_line(struct totals t) {
    double requests = latency.num ? latency.num : 1, chunks = one_way.num;
    printf("rps=%.0f n=%llu err=%llu lat_us p50=%llu p90=%llu p99=%llu ttfb p50=%llu p99=%llu | ",
           latency.num / t.seconds, latency.num, (unsigned long long)num_errors, quantile(&latency, .5),
           quantile(&latency, .9), quantile(&latency, .99), quantile(&first_byte, .5),
           quantile(&first_byte, .99));
    printf("chunks/s=%.0f oneway p50=%llu p99=%llu | ", one_way.num / t.seconds, quantile(&one_way, .5),
           quantile(&one_way, .99));
    printf("cpu_util=%.2f cpu_us/req=%.1f cpu_us/chunk=%.2f rss_mb=%.0f selfcpu_us/req=%.1f\n",
           t.cpu_us / 1e6 / t.seconds, latency.num ? t.cpu_us / requests : 0, chunks ? t.cpu_us / chunks : 0,
           processes_rss_mb(), t.own_cpu_us / requests);
}

static void print_json(struct totals t) {
    printf("{\"seconds\":%.3f,\"num_requests\":%llu,\"num_errors\":%llu,\"num_chunks\":%llu,", t.seconds,
           latency.num, (unsigned long long)num_errors, one_way.num);
    printf("\"latency_p50_us\":%llu,\"latency_p99_us\":%llu,\"first_byte_p50_us\":%llu,"
           "\"first_byte_p99_us\":%llu,\"one_way_p50_us\":%llu,\"one_way_p99_us\":%llu,",
           quantile(&latency, .5), quantile(&latency, .99), quantile(&first_byte, .5),
           quantile(&first_byte, .99), quantile(&one_way, .5), quantile(&one_way, .99));
    printf("\"cpu_us\":%.1f,\"own_cpu_us\":%.1f,\"rss_mb\":%.1f}\n", t.cpu_us, t.own_cpu_us,
           processes_rss_mb());
}

static void set_option(char name, const char *value) {
    switch (name) {
    case 'c': options.num_connections = atoi(value); break;
    case 'd': options.seconds = atof(value); break;
    case 'w': options.warm_up_seconds = atof(value); break;
    case 'b': options.wording.prompt_bytes = atol(value); break;
    case 'k': options.wording.num_prefixes = atoi(value); break;
    case 's': options.is_stream = atoi(value) != 0; break;
    case 'p': options.path = value; break;
    case 'z': options.think_ms = atoi(value); break;
    case 'P': options.pids = value; break;
    case 'm': options.wording.model = value; break;
    case 'a': options.bearer = value; break;
    case 'M': options.wording.num_messages = atoi(value); break;
    case 'N': options.wording.new_bytes = atol(value); break;
    case 'B': options.bodies = value; break;
    case 'o': options.is_once = atoi(value) != 0; break;
    case 'j': options.is_json = atoi(value) != 0; break;
    default:
        fprintf(stderr, "loadgen: no option -%c\n", name);
        exit(2);
    }
}

int main(int argc, char **argv) {
    if (argc < 2) {
        fprintf(stderr, "usage: loadgen PORT [-c connections] [-d seconds] ..., see the head of loadgen.c\n");
        return 2;
    }
    signal(SIGPIPE, SIG_IGN);
    options.port = atoi(argv[1]);
    for (int i = 2; i + 1 < argc; i += 2) {
        set_option(argv[i][1], argv[i + 1]);
    }
    if (options.bodies != NULL) {
        load_bodies(&bodies, options.bodies);
    }
    options.wording.is_chat = strstr(options.path, "chat") != NULL;
    options.wording.is_stream = options.is_stream;
    make_prefixes(&options.wording);
    num_made = now_ns();  // another run must not send the same bodies
    open_histogram(&latency);
    open_histogram(&first_byte);
    open_histogram(&one_way);
    struct totals totals = measure();
    if (options.is_json) {
        print_json(totals);
    } else {
        print_line(totals);
    }
    return 0;
}
