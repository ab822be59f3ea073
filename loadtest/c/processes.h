// CPU time and memory of processes and all their children, from /proc.
#ifndef PROCESSES_H
#define PROCESSES_H

#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAX_PROCESSES = 256 };

static int process_ids[MAX_PROCESSES];
static int num_processes;

// The fields of /proc/PID/stat behind the name, which may hold spaces and parentheses; "" if it is gone.
static inline const char *process_stat(int pid) {
    static char text[1024];
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    FILE *file = fopen(path, "r");
    if (file == NULL) {
        return "";
    }
    text[fread(text, 1, sizeof text - 1, file)] = 0;
    fclose(file);
    char *name_end = strrchr(text, ')');
    return name_end != NULL ? name_end + 1 : "";
}

static inline void add_process(int pid) {
    if (num_processes == MAX_PROCESSES) {
        return;
    }
    process_ids[num_processes++] = pid;
    DIR *proc = opendir("/proc");
    struct dirent *entry;
    while (proc != NULL && (entry = readdir(proc)) != NULL) {
        int child = atoi(entry->d_name), parent = 0;
        if (child > 0 && sscanf(process_stat(child), " %*c %d", &parent) == 1 && parent == pid) {
            add_process(child);
        }
    }
    if (proc != NULL) {
        closedir(proc);
    }
}

// `pids` separated by commas.
static inline void find_processes(const char *pids) {
    char *list = strdup(pids);
    for (char *pid = strtok(list, ","); pid != NULL; pid = strtok(NULL, ",")) {
        add_process(atoi(pid));
    }
    free(list);
}

// In microseconds, at the resolution of a tick.
static inline double ticks_us(int pid) {
    unsigned long user = 0, system = 0;
    sscanf(process_stat(pid), " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu", &user, &system);
    return (user + system) * 1e6 / sysconf(_SC_CLK_TCK);
}

// Of all threads together. A thread that ends takes its time with it: those measured here keep theirs.
static inline double process_cpu_us(int pid) {
    char path[64 + 256];
    unsigned long long sum_ns = 0, ns;
    snprintf(path, sizeof path, "/proc/%d/task", pid);
    DIR *tasks = opendir(path);
    struct dirent *entry;
    while (tasks != NULL && (entry = readdir(tasks)) != NULL) {
        snprintf(path, sizeof path, "/proc/%d/task/%s/schedstat", pid, entry->d_name);
        FILE *file = entry->d_name[0] == '.' ? NULL : fopen(path, "r");
        if (file != NULL && fscanf(file, "%llu", &ns) == 1) {
            sum_ns += ns;
        }
        if (file != NULL) {
            fclose(file);
        }
    }
    if (tasks != NULL) {
        closedir(tasks);
    }
    return sum_ns > 0 ? sum_ns / 1e3 : ticks_us(pid);
}

static inline double processes_cpu_us(void) {
    double sum = 0;
    for (int i = 0; i < num_processes; i++) {
        sum += process_cpu_us(process_ids[i]);
    }
    return sum;
}

static inline double processes_rss_mb(void) {
    double sum = 0;
    for (int i = 0; i < num_processes; i++) {
        char path[64];
        unsigned long size, resident = 0;
        snprintf(path, sizeof path, "/proc/%d/statm", process_ids[i]);
        FILE *file = fopen(path, "r");
        if (file != NULL && fscanf(file, "%lu %lu", &size, &resident) == 2) {
            sum += resident * (double)sysconf(_SC_PAGESIZE) / 1e6;
        }
        if (file != NULL) {
            fclose(file);
        }
    }
    return sum;
}

#endif
