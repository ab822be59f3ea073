// What worker.c reads of HTTP/1.1.
#ifndef HTTP_H
#define HTTP_H

#include <stddef.h>
#include <string.h>
#include <strings.h>

#include "buffer.h"

// The value of a header in a terminated head, or NULL; `name` with its colon.
static inline const char *header(const char *head, const char *name) {
    for (const char *line = strchr(head, '\n'); line != NULL; line = strchr(line + 1, '\n')) {
        if (strncasecmp(line + 1, name, strlen(name)) == 0) {
            return line + 1 + strlen(name);
        }
    }
    return NULL;
}

// Join the chunks of a body. Returns its length as it came, with all framing, or 0 if it is not complete.
static inline size_t join_chunks(const char *data, size_t available, struct buffer *body) {
    size_t at = 0;
    while (true) {
        const char *line_end = memmem(data + at, available - at, "\r\n", 2);
        if (line_end == NULL) {
            return 0;
        }
        size_t size = strtoull(data + at, NULL, 16);
        size_t start = line_end + 2 - data;
        if (size > available || start + size + 2 > available) {
            return 0;
        }
        append(body, data + start, size);
        at = start + size + 2;
        if (size == 0) {
            return at;
        }
    }
}

#endif
