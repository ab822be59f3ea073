// Counts of microseconds, one bucket each up to 4 s: exact quantiles without keeping the samples.
#ifndef HISTOGRAM_H
#define HISTOGRAM_H

#include <stdint.h>
#include <stdlib.h>

enum { NUM_BUCKETS = 4000001 };  // the last counts everything above

struct histogram {
    uint32_t *counts;
    unsigned long long num;
};

static inline void open_histogram(struct histogram *histogram) {
    histogram->counts = calloc(NUM_BUCKETS, sizeof *histogram->counts);
    if (histogram->counts == NULL) {
        abort();
    }
}

static inline void record(struct histogram *histogram, uint64_t us) {
    histogram->counts[us < NUM_BUCKETS ? us : NUM_BUCKETS - 1]++;
    histogram->num++;
}

// 0 of an empty one.
static inline unsigned long long quantile(const struct histogram *histogram, double share) {
    unsigned long long rank = share * histogram->num, seen = 0;
    for (size_t us = 0; us < NUM_BUCKETS; us++) {
        seen += histogram->counts[us];
        if (seen > rank) {
            return us;
        }
    }
    return 0;
}

#endif
