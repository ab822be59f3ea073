// Request bodies from a file, as loadtest/workloads/bodies.py writes it. Bodies share most of their text
// (a conversation, then a new message), so the file has pieces, and bodies that name them:
//
//   P {"model":"m","messages":[        a piece: its bytes up to the line's end (JSON holds no raw one)
//   B 0 17 4                           a body: pieces by number, counted from 0 in the file's order
#ifndef BODIES_H
#define BODIES_H

#include <stdio.h>

#include "buffer.h"

struct piece {
    const char *data;
    size_t length;
};

struct bodies {
    struct piece *pieces;
    size_t num_pieces;
    const char **bodies;  // each the list of its pieces, as text up to the line's end
    size_t num_bodies;
};

static inline void refuse_bodies(const char *path, const char *why) {
    fprintf(stderr, "loadgen: %s: %s\n", path, why);
    exit(2);
}

// Ends with a zero byte.
static inline char *read_file(const char *path) {
    struct buffer text = {0};
    FILE *file = fopen(path, "rb");
    if (file == NULL) {
        refuse_bodies(path, "cannot be read");
    }
    size_t length;
    do {
        reserve(&text, 1 << 20);
        length = fread(text.data + text.length, 1, 1 << 20, file);
        text.length += length;
    } while (length > 0);
    fclose(file);
    text.data[text.length] = 0;
    return text.data;
}

// The next piece of a body, NULL after the last; moves `at` on.
static inline const struct piece *next_piece(const struct bodies *bodies, const char **at) {
    if (**at != ' ') {
        return NULL;
    }
    char *end;
    size_t number = strtoull(*at, &end, 10);
    *at = end;
    return number < bodies->num_pieces ? &bodies->pieces[number] : NULL;
}

static inline size_t body_length(const struct bodies *bodies, size_t number) {
    const char *at = bodies->bodies[number];
    size_t length = 0;
    for (const struct piece *piece; (piece = next_piece(bodies, &at)) != NULL;) {
        length += piece->length;
    }
    return length;
}

static inline void append_body(const struct bodies *bodies, size_t number, struct buffer *out) {
    const char *at = bodies->bodies[number];
    for (const struct piece *piece; (piece = next_piece(bodies, &at)) != NULL;) {
        append(out, piece->data, piece->length);
    }
}

static inline size_t count_lines(const char *text) {
    size_t num = 0;
    for (; (text = strchr(text, '\n')) != NULL; text++) {
        num++;
    }
    return num;
}

// Ends the program with a message if the file cannot be used.
static inline void load_bodies(struct bodies *bodies, const char *path) {
    const char *line = read_file(path);
    size_t num_lines = count_lines(line);
    bodies->pieces = calloc(num_lines + 1, sizeof *bodies->pieces);
    bodies->bodies = calloc(num_lines + 1, sizeof *bodies->bodies);
    for (const char *end; (end = strchr(line, '\n')) != NULL; line = end + 1) {
        if (line[0] == 'P' && line[1] == ' ') {
            bodies->pieces[bodies->num_pieces++] = (struct piece){line + 2, end - line - 2};
        } else if (line[0] == 'B' && line[1] == ' ') {
            bodies->bodies[bodies->num_bodies++] = line + 1;
        } else {
            refuse_bodies(path, "has a line that is neither a piece (P) nor a body (B)");
        }
    }
    if (bodies->num_bodies == 0) {
        refuse_bodies(path, "has no body");
    }
}

#endif
