/* Preloaded into a test: removing the file /fork forks, and fails in the child. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

int unlink(const char *path) {
    if (strcmp(path, "/fork") != 0)
        return unlinkat(AT_FDCWD, path, 0);
    if (fork() != 0)
        return 0;
    errno = ENOENT;
    return -1;
}
