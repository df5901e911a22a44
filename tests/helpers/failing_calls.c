// Preloaded into a process: file-system calls below one folder are counted, and one of them fails or is the last.
//
// arm(folder, at, error, lasting)   from the `at`th counted call on, the first call that can have `error` has it, or all
//                                   that can, if it is lasting; KILL ends the process before the call, INTERRUPT is Ctrl-C
//                                   before it, and SHORT reads or writes half of the bytes
// disarm()                          how many calls were counted
// has_struck()                      1 once a call has failed
//
// Threads and forked children share the count.  open() and its kin are told apart by whether they may make a file.

#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

enum { KILL = 0, SHORT = -1, INTERRUPT = -2 };
enum { FINDS = 1, MAKES = 2, TAKES_ROOM = 4, MOVES_BYTES = 8 }; // what a call does decides how it can fail

static struct state {
    char folder[PATH_MAX];
    long at;
    int error, lasting;
    atomic_long calls;
    atomic_int struck;
} *armed;

int arm(const char *folder, long at, int error, int lasting) {
    struct state *made = mmap(NULL, sizeof *made, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (made == MAP_FAILED)
        return -1;
    snprintf(made->folder, sizeof made->folder, "%s/", folder);
    made->at = at, made->error = error, made->lasting = lasting;
    armed = made;
    return 0;
}

static struct state *last;

long disarm(void) {
    if (armed)
        last = armed, armed = NULL;
    return last ? atomic_load(&last->calls) : 0;
}

int has_struck(void) { return last && atomic_load(&last->struck); }

static int can_have(int error, int kind) {
    switch (error) {
    case SHORT:
        return kind & MOVES_BYTES;
    case EMFILE:
        return kind & FINDS;
    case ENOSPC:
    case EDQUOT:
        return kind & (MAKES | TAKES_ROOM);
    default:
        return 1;
    }
}

// The error of a call; 0 for none.
static int struck(const char *path, int kind) {
    struct state *now = armed;
    if (!now || strncmp(path, now->folder, strlen(now->folder)) != 0)
        return 0;
    if (atomic_fetch_add(&now->calls, 1) + 1 < now->at || !can_have(now->error, kind))
        return 0;
    if (atomic_exchange(&now->struck, 1) && !now->lasting)
        return 0;
    if (now->error == KILL)
        kill(getpid(), SIGKILL);
    if (now->error == INTERRUPT) {
        kill(getpid(), SIGINT);
        return 0;
    }
    errno = now->error;
    return now->error;
}

static int struck_at(int folder, const char *path, int kind) {
    char link[64], whole[2 * PATH_MAX];
    if (!armed || !path)
        return 0;
    if (folder == AT_FDCWD || path[0] == '/')
        return struck(path, kind);
    snprintf(link, sizeof link, "/proc/self/fd/%d", folder);
    ssize_t length = readlink(link, whole, PATH_MAX);
    if (length < 0)
        return 0;
    snprintf(whole + length, sizeof whole - length, "/%s", path);
    return struck(whole, kind);
}

static int struck_fd(int file, int kind) { return struck_at(file, "", kind); }

#define REAL(result, name, ...)                                                                                        \
    static result (*real)(__VA_ARGS__);                                                                                \
    if (!real)                                                                                                         \
    real = (result(*)(__VA_ARGS__))dlsym(RTLD_NEXT, name)

static size_t half(size_t count) { return count > 1 ? count / 2 : count; }

#define MOVE(name, kind, data)                                                                                         \
    ssize_t name(int file, data *bytes, size_t count) {                                                                \
        REAL(ssize_t, #name, int, data *, size_t);                                                                     \
        int error = struck_fd(file, kind);                                                                             \
        return error > 0 ? -1 : real(file, bytes, error == SHORT ? half(count) : count);                               \
    }
#define MOVE_AT(name, kind, data)                                                                                      \
    ssize_t name(int file, data *bytes, size_t count, off_t place) {                                                   \
        REAL(ssize_t, #name, int, data *, size_t, off_t);                                                              \
        int error = struck_fd(file, kind);                                                                             \
        return error > 0 ? -1 : real(file, bytes, error == SHORT ? half(count) : count, place);                        \
    }
#define MOVE_MANY(name, kind)                                                                                          \
    ssize_t name(int file, const struct iovec *parts, int count) {                                                     \
        REAL(ssize_t, #name, int, const struct iovec *, int);                                                          \
        return struck_fd(file, kind) > 0 ? -1 : real(file, parts, count);                                              \
    }
MOVE(read, MOVES_BYTES, void)
MOVE(write, MOVES_BYTES | TAKES_ROOM, const void)
MOVE_AT(pread, MOVES_BYTES, void)
MOVE_AT(pread64, MOVES_BYTES, void)
MOVE_AT(pwrite, MOVES_BYTES | TAKES_ROOM, const void)
MOVE_AT(pwrite64, MOVES_BYTES | TAKES_ROOM, const void)
MOVE_MANY(readv, 0)
MOVE_MANY(writev, TAKES_ROOM)

static int opens(int flags) { return flags & O_CREAT ? FINDS | MAKES : FINDS; }

#define OPEN(name)                                                                                                     \
    int name(const char *path, int flags, ...) {                                                                       \
        REAL(int, #name, const char *, int, ...);                                                                      \
        va_list more;                                                                                                  \
        va_start(more, flags);                                                                                         \
        mode_t mode = flags & (O_CREAT | __O_TMPFILE) ? va_arg(more, mode_t) : 0;                                      \
        va_end(more);                                                                                                  \
        return struck_at(AT_FDCWD, path, opens(flags)) ? -1 : real(path, flags, mode);                                 \
    }
#define OPEN_AT(name)                                                                                                  \
    int name(int folder, const char *path, int flags, ...) {                                                           \
        REAL(int, #name, int, const char *, int, ...);                                                                 \
        va_list more;                                                                                                  \
        va_start(more, flags);                                                                                         \
        mode_t mode = flags & (O_CREAT | __O_TMPFILE) ? va_arg(more, mode_t) : 0;                                      \
        va_end(more);                                                                                                  \
        return struck_at(folder, path, opens(flags)) ? -1 : real(folder, path, flags, mode);                           \
    }
#define FOPEN(name)                                                                                                    \
    FILE *name(const char *path, const char *mode) {                                                                   \
        REAL(FILE *, #name, const char *, const char *);                                                               \
        return struck_at(AT_FDCWD, path, *mode == 'r' ? FINDS : FINDS | MAKES) ? NULL : real(path, mode);              \
    }
OPEN(open)
OPEN(open64)
OPEN_AT(openat)
OPEN_AT(openat64)
FOPEN(fopen)
FOPEN(fopen64)

DIR *opendir(const char *path) {
    REAL(DIR *, "opendir", const char *);
    return struck_at(AT_FDCWD, path, FINDS) ? NULL : real(path);
}

int fsync(int file) { return struck_fd(file, TAKES_ROOM) ? -1 : 0; } // the machine goes on, so nothing need be flushed
int fdatasync(int file) { return fsync(file); }

#define RESIZE(name)                                                                                                   \
    int name(int file, off_t size) {                                                                                   \
        REAL(int, #name, int, off_t);                                                                                  \
        return struck_fd(file, TAKES_ROOM) ? -1 : real(file, size);                                                    \
    }
RESIZE(ftruncate)
RESIZE(ftruncate64)

#define OF_PATH(name)                                                                                                  \
    int name(const char *path) {                                                                                       \
        REAL(int, #name, const char *);                                                                                \
        return struck_at(AT_FDCWD, path, 0) ? -1 : real(path);                                                         \
    }
OF_PATH(unlink)
OF_PATH(rmdir)

int unlinkat(int folder, const char *path, int flags) {
    REAL(int, "unlinkat", int, const char *, int);
    return struck_at(folder, path, 0) ? -1 : real(folder, path, flags);
}

int mkdir(const char *path, mode_t mode) {
    REAL(int, "mkdir", const char *, mode_t);
    return struck_at(AT_FDCWD, path, MAKES) ? -1 : real(path, mode);
}

int mkdirat(int folder, const char *path, mode_t mode) {
    REAL(int, "mkdirat", int, const char *, mode_t);
    return struck_at(folder, path, MAKES) ? -1 : real(folder, path, mode);
}

#define TWO_PATHS(name)                                                                                                \
    int name(const char *from, const char *to) {                                                                       \
        REAL(int, #name, const char *, const char *);                                                                  \
        return struck_at(AT_FDCWD, to, MAKES) ? -1 : real(from, to);                                                   \
    }
TWO_PATHS(rename)
TWO_PATHS(link)

int renameat(int from_folder, const char *from, int to_folder, const char *to) {
    REAL(int, "renameat", int, const char *, int, const char *);
    return struck_at(to_folder, to, MAKES) ? -1 : real(from_folder, from, to_folder, to);
}
