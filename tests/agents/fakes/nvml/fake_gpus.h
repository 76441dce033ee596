/* The GPUs of the fake driver: their layout in the file, how the file is taken, and what a GPU does.
 * fake_gpus.py holds the same layout; fake_nvml_state_size() tells when the two have drifted apart.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define MAX_GPUS 16
#define MAX_PROCESSES 64
#define MAX_SLICES 8
#define MAX_PROFILES 18
#define MAX_FAULTS 16
#define MAX_EVENTS 64
#define KILL_BEFORE 9001
#define KILL_AFTER 9002
enum { OK = 0, UNINITIALIZED = 1, INVALID = 2, NOT_SUPPORTED = 3, NO_PERMISSION = 4, NOT_FOUND = 6, TOO_SMALL = 7,
       NOT_LOADED = 9, TIMEOUT = 10, LOST = 15, IN_USE = 19, NO_ROOM = 23 };
enum { NO_LOCK = 1, NO_POWER = 2, NO_ENERGY = 4, NO_USE = 8, NO_MPS_LIST = 16, NO_GPM = 32, NO_EVENTS = 64, NO_MIG = 128,
       NO_CLOCK_LIST = 256, NO_PERSISTENCE = 512, NO_LIMIT_KEPT = 1024, NO_MEMORY = 2048 }; /* NO_LIMIT_KEPT: a board that draws what it likes */

typedef struct { uint32_t pid, is_mps, sm_percent, gpu_instance; uint64_t memory; } process_t;
/* A GPU instance where `size` is not 0; a device that programs see where a compute instance makes it `in_use`. */
typedef struct {
    char uuid[80], name[96];
    uint32_t sm_count, gpu_instance, in_use, profile, start, size; /* `profile` is the driver's id */
    uint64_t memory_mib, memory_used;
} slice_t;
/* A kind of slice, at its number in NVML's list; `size` 0 = this GPU does not have it. */
typedef struct {
    char name[32];
    uint32_t id, slices, sms, most, size, start_count, starts[8];
    uint64_t memory_mib;
} profile_t;
typedef struct {
    char uuid[80], name[96];
    uint32_t architecture, without; /* `without`: NO_... of what this GPU does not have */
    uint64_t memory_total, memory_reserved, memory_used;
    uint32_t clock_low, clock_high, clock_step, clock_idle, clock_memory, lock_low, lock_high; /* lock_high 0 = none */
    uint32_t power_low, power_high, power_default, power_limit, power_enforced; /* mW; power_enforced 0 = none */
    uint32_t power_idle, power_busy;                                           /* mW; busy at clock_high and full load */
    uint32_t load_percent, reasons, lost, mig_mode;
    uint32_t process_count, slice_count, recovery, spare;
    uint64_t energy_mj, energy_at_ns; /* what was counted until then */
    process_t processes[MAX_PROCESSES];
    slice_t slices[MAX_SLICES];
    profile_t profiles[MAX_PROFILES];
    uint64_t slices_made; /* a slice that is made again has another UUID */
} gpu_t;
typedef struct { char function[64]; int32_t code, times, skip, spare; } fault_t; /* times -1 = always, after `skip` */
typedef struct { uint32_t gpu, instance; uint64_t kind, data; } event_t;
typedef struct {
    uint32_t size, gpu_count, may_write, is_loaded, loads, reload_code, event_count, writes;
    uint64_t now_ns; /* 0 = the real clock */
    char driver_version[80];
    fault_t faults[MAX_FAULTS];
    event_t events[MAX_EVENTS]; /* a ring: event_count % MAX_EVENTS is the next */
    gpu_t gpus[MAX_GPUS];
} state_t;
typedef struct { uint32_t gpu, slice, load; } handle_t; /* slice 0 = the whole GPU, else 1 + its place */

static pthread_mutex_t in_process = PTHREAD_MUTEX_INITIALIZER;
static state_t *state;
static int file = -1;
static uint32_t session, users; /* the load of the driver that nvmlInit met; 0 = not started */
static handle_t handles[MAX_GPUS][MAX_SLICES + 1];

uint32_t fake_nvml_state_size(void) { return sizeof(state_t); }

/* ---- Taking the file ------------------------------------------------------------------------------------------- */

static void leave(void) {
    if (file >= 0) flock(file, LOCK_UN);
    pthread_mutex_unlock(&in_process);
}

static void take(void) {
    pthread_mutex_lock(&in_process);
    if (file >= 0) while (flock(file, LOCK_EX) != 0 && errno == EINTR) continue;
}

static int map_state(void) {
    const char *path = getenv("FAKE_NVML_STATE");
    if (state) munmap(state, sizeof(state_t));
    if (file >= 0) close(file);
    state = NULL;
    file = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    if (file < 0) return NOT_LOADED;
    state = mmap(NULL, sizeof(state_t), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (state == MAP_FAILED || state->size != sizeof(state_t)) abort(); /* laid out by another version of fake_gpus.py */
    return OK;
}

/* The code that a test wants of this function, at its end or else at its beginning; counts down. */
static int fault_of(const char *function, int at_end) {
    for (int i = 0; i < MAX_FAULTS; i++) {
        fault_t *fault = &state->faults[i];
        if (fault->times == 0 || strcmp(fault->function, function) != 0) continue;
        if ((fault->code == KILL_AFTER) != at_end) continue;
        if (fault->skip > 0) { fault->skip--; continue; }
        if (fault->times > 0) fault->times--;
        if (fault->code == KILL_BEFORE || fault->code == KILL_AFTER) raise(SIGKILL);
        return fault->code;
    }
    return OK;
}

/* Whether the session and the handle are good; leaves the lock taken only when it answers OK. */
static int enter(const char *function, const handle_t *handle) {
    take();
    int code = !session ? UNINITIALIZED : !state->is_loaded ? NOT_LOADED
             : session != state->loads ? (int)state->reload_code : fault_of(function, 0);
    if (code == OK && handle && handle->load != state->loads) code = UNINITIALIZED;
    if (code == OK && handle && state->gpus[handle->gpu].lost) code = (int)state->gpus[handle->gpu].lost;
    if (code != OK) leave();
    return code;
}

static gpu_t *gpu_of(const handle_t *handle) { return &state->gpus[handle->gpu]; }

static int finish(int code) { leave(); return code; }

/* A call on one GPU, which may not have what the call needs. */
#define ON(handle, need)                                                              \
    int code_ = enter(__func__, handle);                                              \
    if (code_ != OK) return code_;                                                    \
    gpu_t *gpu = gpu_of(handle);                                                      \
    if (gpu->without & (need)) return finish(NOT_SUPPORTED)

/* ---- What a GPU does: clock, watts, energy --------------------------------------------------------------------- */

static uint64_t now_ns(void) {
    struct timespec t;
    if (state->now_ns) return state->now_ns;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000ULL + (uint64_t)t.tv_nsec;
}

static uint32_t limit_of(const gpu_t *gpu) {
    return gpu->power_enforced && gpu->power_enforced < gpu->power_limit ? gpu->power_enforced : gpu->power_limit;
}

/* Watts above idle grow with load and with clock. */
static uint32_t draw_mw(const gpu_t *gpu, uint32_t clock) {
    uint64_t above = gpu->power_busy - gpu->power_idle;
    return gpu->power_idle + (uint32_t)(above * gpu->load_percent * clock / 100 / gpu->clock_high);
}

/* Full speed under load, idle without, inside the lock; under load as much lower as the power limit wants. */
static uint32_t clock_now(const gpu_t *gpu) {
    uint32_t clock = gpu->load_percent ? gpu->clock_high : gpu->clock_idle;
    if (gpu->lock_high && clock > gpu->lock_high) clock = gpu->lock_high;
    if (gpu->lock_high && clock < gpu->lock_low) clock = gpu->lock_low;
    if (!gpu->load_percent || gpu->without & NO_LIMIT_KEPT) return clock;
    while (clock > gpu->clock_low && draw_mw(gpu, clock) > limit_of(gpu)) clock -= gpu->clock_step;
    return clock;
}

static int is_power_capped(const gpu_t *gpu) {
    uint32_t wanted = gpu->lock_high ? gpu->lock_high : gpu->clock_high;
    return gpu->load_percent && clock_now(gpu) < wanted;
}

static uint32_t power_now(const gpu_t *gpu) { return draw_mw(gpu, clock_now(gpu)); }

/* Before anything changes that watts depend on, what was drawn until now is counted. */
static void count_energy(gpu_t *gpu) {
    uint64_t now = now_ns();
    gpu->energy_mj += (uint64_t)((double)power_now(gpu) * (double)(now - gpu->energy_at_ns) / 1e9);
    gpu->energy_at_ns = now;
}

static int end_write(const char *function) {
    state->writes++;
    fault_of(function, 1);
    return finish(OK);
}
