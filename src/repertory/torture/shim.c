/* Stands between a process and the files of one folder: writes down what is done to them, and makes it fail on demand.
 *
 * Preloaded, and asleep until shim_begin() is called. Calls that only read pass untouched. One lock keeps the order of
 * the trace the order of the calls. shim.py says what a plan is, trace.py what the trace looks like.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

enum { OPEN = 1, WRITE, TRUNCATE, SYNC, LOST_SYNC, RENAME, UNLINK, MKDIR, RMDIR, MARK, FAULT };
enum { ON_WRITE, ON_SYNC, ON_TRUNCATE, ON_NAME, ON_ANY, KINDS };
enum { PASS, FAIL, PARTLY, LIE, DIE_BEFORE, DIE_AFTER };

#define MOST_FDS 4096
#define MOST_RULES 64

struct rule { int kind, first, last, action, error, seen; char suffix[32]; };
struct header { uint32_t kind, file; uint64_t offset; uint32_t flags, length; };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int trace = -1;
static char root[1024];
static size_t root_length;
static struct rule rules[MOST_RULES];
static int rule_count;
static uint32_t file_of[MOST_FDS]; /* 0: not ours */
static char *path_of[MOST_FDS];
static uint32_t files;
static char buffer[1024];

#define REAL(type, name, ...) \
  static type (*real)(__VA_ARGS__); \
  if (!real) real = (type (*)(__VA_ARGS__))dlsym(RTLD_NEXT, name)

static void put(const void *data, size_t length) {
  const char *at = data;
  while (length > 0) {
    ssize_t done = syscall(SYS_write, trace, at, length);
    if (done < 0) { if (errno == EINTR) continue; _exit(70); }
    at += done; length -= (size_t)done;
  }
}

/* One record: the header and up to two parts. */
static void record(int kind, uint32_t file, uint64_t offset, uint32_t flags, const void *a, size_t la, const void *b,
                   size_t lb) {
  struct header header = {(uint32_t)kind, file, offset, flags, (uint32_t)(la + lb)};
  int kept = errno;
  put(&header, sizeof header);
  if (la) put(a, la);
  if (lb) put(b, lb);
  errno = kept;
}

/* The part of a path below the root; NULL where it is not ours. The root itself is "". */
static const char *below(const char *path) {
  if (trace < 0 || !path || path[0] != '/' || strncmp(path, root, root_length)) return NULL;
  if (path[root_length] == 0) return path + root_length;
  return path[root_length] == '/' ? path + root_length + 1 : NULL;
}

static int ours(int fd) { return trace >= 0 && fd >= 0 && fd < MOST_FDS && file_of[fd]; }

static int ends_with(const char *path, const char *suffix) {
  size_t a = strlen(path), b = strlen(suffix);
  return a >= b && !strcmp(path + a - b, suffix);
}

/* What is to become of this call; with the lock held. The first rule that fits decides, and every rule counts. */
static struct rule *judge(int kind, const char *path) {
  struct rule *chosen = NULL;
  for (int i = 0; i < rule_count; i++) {
    struct rule *rule = &rules[i];
    if ((rule->kind != kind && rule->kind != ON_ANY) || !ends_with(path, rule->suffix)) continue;
    rule->seen++;
    if (!chosen && rule->seen >= rule->first && rule->seen <= rule->last) chosen = rule;
  }
  if (chosen) {
    int length = snprintf(buffer, sizeof buffer, "%d %s", chosen->action, path);
    record(FAULT, 0, 0, (uint32_t)chosen->error, buffer, (size_t)length, NULL, 0);
    if (chosen->action == DIE_BEFORE) syscall(SYS_kill, getpid(), SIGKILL), pause();
  }
  return chosen;
}

static void after(struct rule *rule) {
  if (rule && rule->action == DIE_AFTER) syscall(SYS_kill, getpid(), SIGKILL), pause();
}

static int fails(struct rule *rule) {
  if (!rule || (rule->action != FAIL && rule->action != PARTLY)) return 0;
  errno = rule->error;
  return 1;
}

/* --- what the workload calls ----------------------------------------------------------------------------- */

/* plan: "kind suffix first last action error" one a line, numbers as in the enums above; "-" is no suffix. */
int shim_begin(const char *folder, const char *trace_path, const char *plan) {
  if (strlen(folder) >= sizeof root) return ENAMETOOLONG;
  rule_count = 0;
  for (const char *line = plan; *line && rule_count < MOST_RULES;) {
    struct rule *rule = &rules[rule_count];
    memset(rule, 0, sizeof *rule);
    if (sscanf(line, "%d %31s %d %d %d %d", &rule->kind, rule->suffix, &rule->first, &rule->last, &rule->action,
               &rule->error) != 6) return EINVAL;
    if (!strcmp(rule->suffix, "-")) rule->suffix[0] = 0;
    rule_count++;
    line = strchr(line, '\n');
    if (!line) break;
    line++;
  }
  strcpy(root, folder);
  root_length = strlen(root);
  trace = (int)syscall(SYS_openat, AT_FDCWD, trace_path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  return trace < 0 ? errno : 0;
}

void shim_mark(const char *text) {
  if (trace < 0) return;
  pthread_mutex_lock(&lock);
  record(MARK, 0, 0, 0, text, strlen(text), NULL, 0);
  pthread_mutex_unlock(&lock);
}

/* --- names ----------------------------------------------------------------------------------------------- */

static void adopt(int fd, const char *name) {
  struct stat facts;
  if (fd < 0 || fd >= MOST_FDS) return;
  syscall(SYS_newfstatat, fd, "", &facts, AT_EMPTY_PATH);
  file_of[fd] = ++files;
  free(path_of[fd]);
  path_of[fd] = strdup(name);
  record(OPEN, files, 0, S_ISDIR(facts.st_mode), name, strlen(name), NULL, 0);
}

static int open_ours(const char *path, int flags, mode_t mode) {
  const char *name = below(path);
  int fd;
  if (!name) return (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
  pthread_mutex_lock(&lock);
  struct rule *rule = NULL;
  if (flags & O_CREAT && syscall(SYS_faccessat, AT_FDCWD, path, F_OK) != 0) rule = judge(ON_NAME, name);
  if (fails(rule)) { pthread_mutex_unlock(&lock); return -1; }
  fd = (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
  if (fd >= 0) {
    int kept = errno;
    adopt(fd, name);
    if (flags & O_TRUNC) record(TRUNCATE, file_of[fd], 0, 0, NULL, 0, NULL, 0);
    errno = kept;
  }
  after(rule);
  pthread_mutex_unlock(&lock);
  return fd;
}

#define WITH_MODE(flags, mode) \
  mode_t mode = 0; \
  if ((flags) & (O_CREAT | O_TMPFILE)) { va_list more; va_start(more, flags); mode = va_arg(more, mode_t); va_end(more); }

int open(const char *path, int flags, ...) { WITH_MODE(flags, mode) return open_ours(path, flags, mode); }
int open64(const char *path, int flags, ...) { WITH_MODE(flags, mode) return open_ours(path, flags, mode); }
int creat(const char *path, mode_t mode) { return open_ours(path, O_WRONLY | O_CREAT | O_TRUNC, mode); }
int creat64(const char *path, mode_t mode) { return open_ours(path, O_WRONLY | O_CREAT | O_TRUNC, mode); }

int openat(int folder, const char *path, int flags, ...) {
  WITH_MODE(flags, mode)
  if (path[0] == '/') return open_ours(path, flags, mode);
  return (int)syscall(SYS_openat, folder, path, flags, mode);
}
int openat64(int folder, const char *path, int flags, ...) {
  WITH_MODE(flags, mode)
  if (path[0] == '/') return open_ours(path, flags, mode);
  return (int)syscall(SYS_openat, folder, path, flags, mode);
}

int close(int fd) {
  if (ours(fd)) {
    pthread_mutex_lock(&lock);
    file_of[fd] = 0;
    pthread_mutex_unlock(&lock);
  }
  return (int)syscall(SYS_close, fd);
}

/* A change of names: judged, done, written down. */
#define CHANGE_NAME(name, call, ...) \
  pthread_mutex_lock(&lock); \
  struct rule *rule = judge(ON_NAME, name); \
  int done = -1; \
  if (!fails(rule)) { \
    done = (int)(call); \
    if (done == 0) record(__VA_ARGS__); \
    after(rule); \
  } \
  pthread_mutex_unlock(&lock); \
  return done

int unlink(const char *path) {
  const char *name = below(path);
  if (!name) return (int)syscall(SYS_unlinkat, AT_FDCWD, path, 0);
  CHANGE_NAME(name, syscall(SYS_unlinkat, AT_FDCWD, path, 0), UNLINK, 0, 0, 0, name, strlen(name), NULL, 0);
}

int rmdir(const char *path) {
  const char *name = below(path);
  if (!name) return (int)syscall(SYS_unlinkat, AT_FDCWD, path, AT_REMOVEDIR);
  CHANGE_NAME(name, syscall(SYS_unlinkat, AT_FDCWD, path, AT_REMOVEDIR), RMDIR, 0, 0, 0, name, strlen(name), NULL, 0);
}

int mkdir(const char *path, mode_t mode) {
  const char *name = below(path);
  if (!name) return (int)syscall(SYS_mkdirat, AT_FDCWD, path, mode);
  CHANGE_NAME(name, syscall(SYS_mkdirat, AT_FDCWD, path, mode), MKDIR, 0, 0, 0, name, strlen(name), NULL, 0);
}

int rename(const char *from, const char *to) {
  const char *a = below(from), *b = below(to);
  if (!a || !b) return (int)syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0);
  CHANGE_NAME(b, syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0), RENAME, 0, 0, 0, a, strlen(a) + 1, b,
              strlen(b));
}

/* --- contents -------------------------------------------------------------------------------------------- */

static ssize_t write_ours(int fd, const void *data, size_t length, off_t offset, int append) {
  pthread_mutex_lock(&lock);
  struct rule *rule = judge(ON_WRITE, path_of[fd]);
  size_t part = rule && rule->action == PARTLY ? length / 2 : length;
  ssize_t done = -1;
  if (rule && (rule->action == FAIL || part == 0)) {
    errno = rule->error;
  } else {
    if (append) {
      off_t end = (off_t)syscall(SYS_lseek, fd, 0, SEEK_CUR);
      if (fcntl(fd, F_GETFL) & O_APPEND) end = (off_t)syscall(SYS_lseek, fd, 0, SEEK_END);
      offset = end;
      done = syscall(SYS_write, fd, data, part);
    } else {
      done = syscall(SYS_pwrite64, fd, data, part, offset);
    }
    if (done > 0) record(WRITE, file_of[fd], (uint64_t)offset, 0, data, (size_t)done, NULL, 0);
    after(rule);
  }
  pthread_mutex_unlock(&lock);
  return done;
}

ssize_t write(int fd, const void *data, size_t length) {
  if (!ours(fd)) return syscall(SYS_write, fd, data, length);
  return write_ours(fd, data, length, 0, 1);
}
ssize_t pwrite(int fd, const void *data, size_t length, off_t offset) {
  if (!ours(fd)) return syscall(SYS_pwrite64, fd, data, length, offset);
  return write_ours(fd, data, length, offset, 0);
}
ssize_t pwrite64(int fd, const void *data, size_t length, off64_t offset) { return pwrite(fd, data, length, offset); }

ssize_t writev(int fd, const struct iovec *parts, int count) {
  if (!ours(fd)) return syscall(SYS_writev, fd, parts, count);
  ssize_t all = 0;
  for (int i = 0; i < count; i++) {
    ssize_t done = write_ours(fd, parts[i].iov_base, parts[i].iov_len, 0, 1);
    if (done < 0) return all ? all : -1;
    all += done;
    if ((size_t)done < parts[i].iov_len) break;
  }
  return all;
}

int ftruncate(int fd, off_t size) {
  if (!ours(fd)) return (int)syscall(SYS_ftruncate, fd, size);
  pthread_mutex_lock(&lock);
  struct rule *rule = judge(ON_TRUNCATE, path_of[fd]);
  int done = -1;
  if (!fails(rule)) {
    done = (int)syscall(SYS_ftruncate, fd, size);
    if (done == 0) record(TRUNCATE, file_of[fd], (uint64_t)size, 0, NULL, 0, NULL, 0);
    after(rule);
  }
  pthread_mutex_unlock(&lock);
  return done;
}
int ftruncate64(int fd, off64_t size) { return ftruncate(fd, size); }

/* Room given ahead is a size given ahead: the model of the disk knows no other. */
static int allocate(int fd, off_t offset, off_t length) {
  struct stat facts;
  syscall(SYS_newfstatat, fd, "", &facts, AT_EMPTY_PATH);
  if (facts.st_size >= offset + length) return 0;
  return ftruncate(fd, offset + length) ? errno : 0;
}
int posix_fallocate(int fd, off_t offset, off_t length) {
  REAL(int, "posix_fallocate", int, off_t, off_t);
  return ours(fd) ? allocate(fd, offset, length) : real(fd, offset, length);
}
int posix_fallocate64(int fd, off64_t offset, off64_t length) { return posix_fallocate(fd, offset, length); }
int fallocate(int fd, int mode, off_t offset, off_t length) {
  if (!ours(fd)) return (int)syscall(SYS_fallocate, fd, mode, offset, length);
  errno = mode ? EOPNOTSUPP : allocate(fd, offset, length);
  return errno ? -1 : 0;
}

static int sync_ours(int fd) {
  pthread_mutex_lock(&lock);
  struct rule *rule = judge(ON_SYNC, path_of[fd]);
  int done = 0;
  if (fails(rule)) {
    record(LOST_SYNC, file_of[fd], 0, 0, NULL, 0, NULL, 0);
    errno = rule->error;
    done = -1;
  } else {
    if (!rule || rule->action != LIE) record(SYNC, file_of[fd], 0, 0, NULL, 0, NULL, 0);
    after(rule);
  }
  pthread_mutex_unlock(&lock);
  return done;
}
/* The folder is no disk, and what a sync makes durable is decided by the model: nothing is really synced. */
int fsync(int fd) { return ours(fd) ? sync_ours(fd) : (int)syscall(SYS_fsync, fd); }
int fdatasync(int fd) { return ours(fd) ? sync_ours(fd) : (int)syscall(SYS_fdatasync, fd); }

/* Writes into mapped memory cannot be seen. SQLite maps its index of the log alone, which no cut keeps. */
static void *map_ours(void *at, size_t length, int protection, int flags, int fd, off_t offset) {
  if (ours(fd) && (protection & PROT_WRITE) && (flags & MAP_SHARED) && !ends_with(path_of[fd], "-shm")) {
    static const char words[] = "a file was mapped to be written: the shim is blind";
    syscall(SYS_write, 2, words, sizeof words - 1);
    _exit(70);
  }
  return (void *)syscall(SYS_mmap, at, length, protection, flags, fd, offset);
}
void *mmap(void *at, size_t length, int protection, int flags, int fd, off_t offset) {
  return map_ours(at, length, protection, flags, fd, offset);
}
void *mmap64(void *at, size_t length, int protection, int flags, int fd, off64_t offset) {
  return map_ours(at, length, protection, flags, fd, offset);
}
