/* Preloaded: every write to an HDF5 file after the first FAIL_AFTER fails with FAIL_WITH, as on a dying or full disk. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

static int fails(int fd) {
    static long done;
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, sizeof path - 1);
    if (n < 3) return 0;
    path[n] = 0;
    if (!strstr(path, ".h5") || strstr(path, ".lock")) return 0;
    return ++done > atol(getenv("FAIL_AFTER"));
}

ssize_t pwrite64(int fd, const void *data, size_t size, off64_t at) {
    ssize_t (*real)(int, const void *, size_t, off64_t) = dlsym(RTLD_NEXT, "pwrite64");
    if (!fails(fd)) return real(fd, data, size, at);
    errno = atoi(getenv("FAIL_WITH"));
    return -1;
}

ssize_t pwrite(int fd, const void *data, size_t size, off_t at) { return pwrite64(fd, data, size, at); }
