/* A resolver for one process: LD_PRELOAD puts it before the C library's, and with that before those of libuv,
   libzmq and Python. Names in the file NAMES_FILE, of lines "name address", have that address at each call;
   all others are resolved as usual. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <strings.h>

typedef int resolver(const char *, const char *, const struct addrinfo *, struct addrinfo **);

static int find(const char *node, char *address)
{
    const char *path = getenv("NAMES_FILE");
    FILE *file = node && path ? fopen(path, "r") : NULL;
    char name[128];
    int is_found = 0;

    while (file && !is_found && fscanf(file, "%127s %63s", name, address) == 2)
        is_found = strcasecmp(name, node) == 0;
    if (file)
        fclose(file);
    return is_found;
}

int getaddrinfo(const char *node, const char *service, const struct addrinfo *hints, struct addrinfo **found)
{
    resolver *next = (resolver *)dlsym(RTLD_NEXT, "getaddrinfo");
    char address[64];

    return next(find(node, address) ? address : node, service, hints, found);
}
