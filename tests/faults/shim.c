/* Preloaded into a process: writes down what it does to the files below one folder, and makes one of its calls fail.

   Nothing happens until shim_record, shim_fail or shim_count is called; calls for other files pass through. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

static char root[PATH_MAX];
static size_t root_length;
static int log_handle = -1;
static char fail_call[32];
static long fail_number;
static const char *const kinds[] = {"read", "write", "fsync", "fdatasync", "rename", "truncate"};
static long counts[6];
static int fail_errno;
static char failed_path[PATH_MAX];
static long stop_number, num_changes;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

static void set_root(const char *folder)
{
    strncpy(root, folder, sizeof root - 1);
    root_length = strlen(root);
}

/* Write down every change below `folder` from now on, into the file `log`. */
int shim_record(const char *folder, const char *log)
{
    set_root(folder);
    log_handle = syscall(SYS_openat, AT_FDCWD, log, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    return log_handle;
}

/* Stop this process after the change with this number, counted from 1, and write down no later ones. */
void shim_stop(long number) { stop_number = number; }

/* Have the call of a kind with this number, counted from 1, fail; 0 only counts. */
void shim_fail(const char *folder, const char *call, long number, int error)
{
    set_root(folder);
    strncpy(fail_call, call, sizeof fail_call - 1);
    fail_number = number;
    fail_errno = error;
    memset(counts, 0, sizeof counts);
    failed_path[0] = 0;
}

static long *count_of(const char *call)
{
    int kind = 0;
    while (strcmp(kinds[kind], call))
        kind++;
    return counts + kind;
}

/* Return how many calls of a kind there were since shim_fail. */
long shim_counted(const char *call) { return *count_of(call); }

/* Return the path of the file whose call failed; empty where none did. */
const char *shim_failed_path(void) { return failed_path; }

static int is_below(const char *path)
{
    return root_length && !strncmp(path, root, root_length) && (path[root_length] == '/' || !path[root_length]);
}

/* Fill `path` with that of a descriptor; return whether it lies below the folder. */
static int path_of(int handle, char *path)
{
    char link[64];
    if (!root_length)
        return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", handle);
    ssize_t length = readlink(link, path, PATH_MAX - 1);
    path[length < 0 ? 0 : length] = 0;
    return is_below(path);
}

/* Fill `full` with the absolute path of a name in a folder; return whether it lies below the folder. */
static int path_at(int folder, const char *name, char *full)
{
    char base[PATH_MAX];
    if (!root_length || !name)
        return 0;
    if (!strncmp(name, "/proc/self/fd/", 14)) {
        /* A folder that is written to by its descriptor, whatever its name. */
        char *rest;
        char link[64];
        snprintf(link, sizeof link, "/proc/self/fd/%ld", strtol(name + 14, &rest, 10));
        ssize_t length = readlink(link, base, sizeof base - 1);
        base[length < 0 ? 0 : length] = 0;
        if (snprintf(full, PATH_MAX, "%s%s", base, rest) >= PATH_MAX)
            return 0;
    } else if (name[0] == '/')
        snprintf(full, PATH_MAX, "%s", name);
    else {
        if (folder == AT_FDCWD) {
            if (!getcwd(base, sizeof base))
                return 0;
        } else {
            char link[64];
            snprintf(link, sizeof link, "/proc/self/fd/%d", folder);
            ssize_t length = readlink(link, base, sizeof base - 1);
            base[length < 0 ? 0 : length] = 0;
        }
        if (snprintf(full, PATH_MAX, "%s/%s", base, name) >= PATH_MAX)
            return 0;
    }
    return is_below(full);
}

static int fails(const char *call, const char *path)
{
    if (!fail_call[0] || strstr(path, " (deleted)"))
        return 0;
    long count = ++*count_of(call);
    if (strcmp(call, fail_call) || count != fail_number)
        return 0;
    strncpy(failed_path, path, sizeof failed_path - 1);
    errno = fail_errno;
    return 1;
}

static int fails_for(const char *call, int handle)
{
    char path[PATH_MAX];
    if (!fail_call[0] || !path_of(handle, path))
        return 0;
    return fails(call, path);
}

static void put(const void *data, size_t length)
{
    while (length) {
        ssize_t done = syscall(SYS_write, log_handle, data, length);
        if (done <= 0)
            abort();
        data = (const char *)data + done;
        length -= done;
    }
}

static void note(char call, const char *path, const char *other, uint64_t at, const struct iovec *parts, int count,
                 uint64_t length)
{
    struct { char call[8]; uint32_t path, other; uint64_t at, length; } head = {{call}, 0, 0, at, length};
    head.path = strlen(path);
    head.other = strlen(other);
    put(&head, sizeof head);
    put(path, head.path);
    put(other, head.other);
    for (int i = 0; i < count && length; i++) {
        size_t part = parts[i].iov_len < length ? parts[i].iov_len : length;
        put(parts[i].iov_base, part);
        length -= part;
    }
    if (!strstr(path, " (deleted)") && ++num_changes == stop_number) {
        log_handle = -1;
        kill(getpid(), SIGSTOP);
    }
}

#define REAL(type, name, ...) \
    static type (*real)(__VA_ARGS__); \
    if (!real) \
        real = dlsym(RTLD_NEXT, #name);
#define LOCKED(statement) \
    do { \
        int kept; \
        pthread_mutex_lock(&mutex); \
        statement; \
        kept = errno; \
        pthread_mutex_unlock(&mutex); \
        errno = kept; \
    } while (0)

static void note_write(int handle, off_t at, const struct iovec *parts, int count, ssize_t done)
{
    char path[PATH_MAX];
    if (log_handle < 0 || done <= 0 || !path_of(handle, path))
        return;
    int kept = errno, flags = fcntl(handle, F_GETFL);
    if (at < 0)
        at = lseek(handle, 0, SEEK_CUR) - done;
    note(flags & O_DSYNC ? 'D' : 'W', path, "", at, parts, count, done);
    errno = kept;
}

#define WRITER(name, call, at, parts, count) \
    { \
        ssize_t done = -1; \
        if (!root_length) \
            return call; \
        if (!fails_for("write", handle)) \
            LOCKED(done = call; note_write(handle, at, parts, count, done)); \
        return done; \
    }
#define ONE ((struct iovec[]){{(void *)data, length}})

ssize_t write(int handle, const void *data, size_t length)
{
    REAL(ssize_t, write, int, const void *, size_t)
    WRITER(write, real(handle, data, length), -1, ONE, 1)
}
ssize_t pwrite(int handle, const void *data, size_t length, off_t at)
{
    REAL(ssize_t, pwrite, int, const void *, size_t, off_t)
    WRITER(pwrite, real(handle, data, length, at), at, ONE, 1)
}
ssize_t pwrite64(int handle, const void *data, size_t length, off_t at)
{
    REAL(ssize_t, pwrite64, int, const void *, size_t, off_t)
    WRITER(pwrite64, real(handle, data, length, at), at, ONE, 1)
}
ssize_t writev(int handle, const struct iovec *parts, int count)
{
    REAL(ssize_t, writev, int, const struct iovec *, int)
    WRITER(writev, real(handle, parts, count), -1, parts, count)
}
ssize_t pwritev(int handle, const struct iovec *parts, int count, off_t at)
{
    REAL(ssize_t, pwritev, int, const struct iovec *, int, off_t)
    WRITER(pwritev, real(handle, parts, count, at), at, parts, count)
}
ssize_t pwritev64(int handle, const struct iovec *parts, int count, off_t at)
{
    REAL(ssize_t, pwritev64, int, const struct iovec *, int, off_t)
    WRITER(pwritev64, real(handle, parts, count, at), at, parts, count)
}

/* What copies within the system is not followed: callers fall back on reading and writing. */
ssize_t sendfile(int to, int from, off_t *at, size_t length)
{
    REAL(ssize_t, sendfile, int, int, off_t *, size_t)
    if (root_length) {
        errno = ENOSYS;
        return -1;
    }
    return real(to, from, at, length);
}
ssize_t sendfile64(int to, int from, off_t *at, size_t length)
{
    REAL(ssize_t, sendfile64, int, int, off_t *, size_t)
    if (root_length) {
        errno = ENOSYS;
        return -1;
    }
    return real(to, from, at, length);
}
ssize_t copy_file_range(int from, off_t *from_at, int to, off_t *to_at, size_t length, unsigned flags)
{
    REAL(ssize_t, copy_file_range, int, off_t *, int, off_t *, size_t, unsigned)
    if (root_length) {
        errno = ENOSYS;
        return -1;
    }
    return real(from, from_at, to, to_at, length, flags);
}

#define READER(call) \
    { \
        if (root_length && fails_for("read", handle)) \
            return -1; \
        return call; \
    }
ssize_t read(int handle, void *data, size_t length)
{
    REAL(ssize_t, read, int, void *, size_t)
    READER(real(handle, data, length))
}
ssize_t pread(int handle, void *data, size_t length, off_t at)
{
    REAL(ssize_t, pread, int, void *, size_t, off_t)
    READER(real(handle, data, length, at))
}
ssize_t pread64(int handle, void *data, size_t length, off_t at)
{
    REAL(ssize_t, pread64, int, void *, size_t, off_t)
    READER(real(handle, data, length, at))
}
ssize_t preadv(int handle, const struct iovec *parts, int count, off_t at)
{
    REAL(ssize_t, preadv, int, const struct iovec *, int, off_t)
    READER(real(handle, parts, count, at))
}
ssize_t preadv64(int handle, const struct iovec *parts, int count, off_t at)
{
    REAL(ssize_t, preadv64, int, const struct iovec *, int, off_t)
    READER(real(handle, parts, count, at))
}

static void note_path(char call, int handle, uint64_t at)
{
    char path[PATH_MAX];
    int kept = errno;
    if (log_handle >= 0 && path_of(handle, path))
        note(call, path, "", at, 0, 0, 0);
    errno = kept;
}

#define SYNC(name) \
    int name(int handle) \
    { \
        int status = -1; \
        REAL(int, name, int) \
        if (!root_length) \
            return real(handle); \
        if (!fails_for(#name, handle)) \
            LOCKED(status = real(handle); if (!status) note_path('S', handle, 0)); \
        return status; \
    }
SYNC(fsync)
SYNC(fdatasync)

#define CUT(name) \
    int name(int handle, off_t length) \
    { \
        int status; \
        REAL(int, name, int, off_t) \
        if (!root_length) \
            return real(handle, length); \
        if (fails_for("truncate", handle)) \
            return -1; \
        LOCKED(status = real(handle, length); if (!status) note_path('T', handle, length)); \
        return status; \
    }
CUT(ftruncate)
CUT(ftruncate64)

#define CUT_PATH(name) \
    int name(const char *path, off_t length) \
    { \
        char full[PATH_MAX]; \
        int status; \
        REAL(int, name, const char *, off_t) \
        if (!path_at(AT_FDCWD, path, full)) \
            return real(path, length); \
        if (fails("truncate", full)) \
            return -1; \
        LOCKED(status = real(path, length); if (!status && log_handle >= 0) note('T', full, "", length, 0, 0, 0)); \
        return status; \
    }
CUT_PATH(truncate)
CUT_PATH(truncate64)

static int open_at(int (*real)(int, const char *, int, ...), int folder, const char *name, int flags, mode_t mode)
{
    char full[PATH_MAX];
    struct stat before;
    int handle;
    if (log_handle < 0 || !(flags & (O_CREAT | O_TRUNC)) || (flags & O_TMPFILE) == O_TMPFILE ||
        !path_at(folder, name, full))
        return real(folder, name, flags, mode);
    LOCKED({
        int was = !stat(full, &before);
        handle = real(folder, name, flags, mode);
        if (handle >= 0 && !was)
            note('C', full, "", 0, 0, 0, 0);
        else if (handle >= 0 && (flags & O_TRUNC) && before.st_size)
            note('T', full, "", 0, 0, 0, 0);
    });
    return handle;
}

#define MODE \
    mode_t mode = 0; \
    if ((flags & O_CREAT) || (flags & O_TMPFILE) == O_TMPFILE) { \
        va_list more; \
        va_start(more, flags); \
        mode = va_arg(more, int); \
        va_end(more); \
    }
int open(const char *name, int flags, ...)
{
    REAL(int, openat, int, const char *, int, ...)
    MODE return open_at(real, AT_FDCWD, name, flags, mode);
}
int open64(const char *name, int flags, ...)
{
    REAL(int, openat64, int, const char *, int, ...)
    MODE return open_at(real, AT_FDCWD, name, flags, mode);
}
int openat(int folder, const char *name, int flags, ...)
{
    REAL(int, openat, int, const char *, int, ...)
    MODE return open_at(real, folder, name, flags, mode);
}
int openat64(int folder, const char *name, int flags, ...)
{
    REAL(int, openat64, int, const char *, int, ...)
    MODE return open_at(real, folder, name, flags, mode);
}

static int note_name(char call, int status, int folder, const char *name)
{
    char full[PATH_MAX];
    int kept = errno;
    if (!status && log_handle >= 0 && path_at(folder, name, full))
        note(call, full, "", 0, 0, 0, 0);
    errno = kept;
    return status;
}
int mkdir(const char *name, mode_t mode)
{
    int status;
    REAL(int, mkdir, const char *, mode_t)
    LOCKED(status = note_name('M', real(name, mode), AT_FDCWD, name));
    return status;
}
int unlink(const char *name)
{
    int status;
    REAL(int, unlink, const char *)
    LOCKED(status = note_name('U', real(name), AT_FDCWD, name));
    return status;
}
int rmdir(const char *name)
{
    int status;
    REAL(int, rmdir, const char *)
    LOCKED(status = note_name('U', real(name), AT_FDCWD, name));
    return status;
}
int unlinkat(int folder, const char *name, int flags)
{
    int status;
    REAL(int, unlinkat, int, const char *, int)
    LOCKED(status = note_name('U', real(folder, name, flags), folder, name));
    return status;
}

static int note_rename(char call, int status, int from, const char *old, int to, const char *new)
{
    char full[PATH_MAX], other[PATH_MAX];
    int kept = errno;
    if (!status && log_handle >= 0 && path_at(from, old, full) && path_at(to, new, other))
        note(call, full, other, 0, 0, 0, 0);
    errno = kept;
    return status;
}
#define RENAMED(from, old, to, new, call, code) \
    { \
        char full[PATH_MAX]; \
        int status = -1; \
        if (path_at(from, old, full) && fails("rename", full)) \
            return -1; \
        LOCKED(status = note_rename(code, call, from, old, to, new)); \
        return status; \
    }
int link(const char *old, const char *new)
{
    int status;
    REAL(int, link, const char *, const char *)
    LOCKED(status = note_rename('L', real(old, new), AT_FDCWD, old, AT_FDCWD, new));
    return status;
}
int linkat(int from, const char *old, int to, const char *new, int flags)
{
    int status;
    REAL(int, linkat, int, const char *, int, const char *, int)
    LOCKED(status = note_rename('L', real(from, old, to, new, flags), from, old, to, new));
    return status;
}
int rename(const char *old, const char *new)
{
    REAL(int, rename, const char *, const char *)
    RENAMED(AT_FDCWD, old, AT_FDCWD, new, real(old, new), 'N')
}
int renameat(int from, const char *old, int to, const char *new)
{
    REAL(int, renameat, int, const char *, int, const char *)
    RENAMED(from, old, to, new, real(from, old, to, new), 'N')
}
int renameat2(int from, const char *old, int to, const char *new, unsigned flags)
{
    REAL(int, renameat2, int, const char *, int, const char *, unsigned)
    RENAMED(from, old, to, new, real(from, old, to, new, flags), flags & 2 ? 'X' : 'N')
}
