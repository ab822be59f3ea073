// Bodies for loadgen.c where it has no file of them: prompts of a few words after one of several prefixes.
#ifndef WORDS_H
#define WORDS_H

#include <stdbool.h>
#include <stdio.h>

#include "buffer.h"

// `new_bytes` is the length of a conversation's new message; without messages a body is one text.
struct wording {
    const char *model;
    bool is_chat, is_stream;
    int num_prefixes, num_messages;
    size_t prompt_bytes, new_bytes;
};

static char **prefixes;

static const char *const WORDS[] = {"the",     "of",     "cache",  "router", "prefix", "block",
                                    "token",   "worker", "and",    "latency", "system", "model",
                                    "prompt",  "answer", "question", "please", "with",  "hash"};

static inline void make_prefixes(const struct wording *wording) {
    prefixes = calloc(wording->num_prefixes, sizeof *prefixes);
    srand48(7);
    for (int i = 0; i < wording->num_prefixes; i++) {
        size_t bytes = wording->prompt_bytes > 5 ? wording->prompt_bytes : 5;
        prefixes[i] = malloc(bytes + 64);
        size_t used = sprintf(prefixes[i], "doc%02d", i);
        while (used < bytes) {
            used += sprintf(prefixes[i] + used, " %s", WORDS[lrand48() % (sizeof WORDS / sizeof *WORDS)]);
        }
        prefixes[i][bytes] = 0;
    }
}

static inline void append_text(struct buffer *body, const char *text) {
    append(body, text, strlen(text));
}

static inline void append_conversation(const struct wording *wording, struct buffer *body, const char *prefix,
                                       const char *unique, uint64_t number) {
    size_t bytes = strlen(prefix), each = bytes / wording->num_messages;
    for (int i = 0; i < wording->num_messages; i++) {
        append_text(body, i % 2 ? "{\"role\":\"assistant\",\"content\":\"" : "{\"role\":\"user\",\"content\":\"");
        append(body, prefix + i * each, each);
        append_text(body, "\"},");
    }
    append_text(body, "{\"role\":\"user\",\"content\":\"");
    append_text(body, unique);
    if (wording->new_bytes > 0 && wording->new_bytes < bytes) {
        append(body, prefix + number * 7919 % (bytes - wording->new_bytes), wording->new_bytes);
    }
    append_text(body, "\"}]");
}

// Body `number`, unlike every other in its last characters.
static inline void make_body(const struct wording *wording, uint64_t number, struct buffer *body) {
    char unique[64];
    const char *prefix = prefixes[number % wording->num_prefixes];
    snprintf(unique, sizeof unique, "%016llx ", (unsigned long long)(number * 0x9E3779B97F4A7C15ull));
    append_text(body, "{\"model\":\"");
    append_text(body, wording->model);
    if (wording->is_chat && wording->num_messages > 0) {
        append_text(body, "\",\"messages\":[");
        append_conversation(wording, body, prefix, unique, number);
    } else {
        append_text(body, wording->is_chat ? "\",\"messages\":[{\"role\":\"user\",\"content\":\"" : "\",\"prompt\":\"");
        append_text(body, prefix);
        append_text(body, " unique suffix ");
        append_text(body, unique);
        append_text(body, wording->is_chat ? "\"}]" : "\"");
    }
    append_text(body, ",\"max_tokens\":64,\"temperature\":0.7,\"stream\":");
    append_text(body, wording->is_stream ? "true}" : "false}");
}

#endif
