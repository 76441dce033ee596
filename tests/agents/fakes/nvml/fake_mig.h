/* MIG of the fake driver: kinds of slices, GPU instances at places of the GPU, compute instances that make devices.
 *
 * As the driver: instances need the mode (3) and the right (4); a GPU instance without a place given takes the first
 * that is free in the order of the profile's starts, and INSUFFICIENT_RESOURCES (23) where there is none, even if
 * another order of making them would have left one; nothing is destroyed while a process works in it, nor a GPU
 * instance while it has a compute instance (19). One simplification: a GPU instance has at most one compute instance.
 */
typedef struct { unsigned start, size; } place_t;
typedef struct { handle_t *device; unsigned id, profile; place_t place; } instance_info;
typedef struct { unsigned sms, engines[5], slices, compute; unsigned long long mib; } attributes_t;
typedef struct {
    unsigned version, id, peer, slices, most, sms, engines[5];
    unsigned long memory_mib;
    char name[96];
} profile_info;
typedef struct { unsigned version, id, slices, most, sms, engines[5]; char name[96]; } compute_info;

/* A call that changes instances, or lists what only who may change them sees. */
#define ON_MIG(handle, needs_right)                                                  \
    ON(handle, NO_MIG);                                                              \
    if (!gpu->mig_mode) return finish(NOT_SUPPORTED);                                \
    if ((needs_right) && !state->may_write) return finish(NO_PERMISSION)

int nvmlDeviceGetMigMode(handle_t *h, unsigned *now, unsigned *pending) {
    ON(h, NO_MIG);
    *now = *pending = gpu->mig_mode;
    return finish(OK);
}

int nvmlDeviceGetMaxMigDeviceCount(handle_t *h, unsigned *count) {
    ON(h, NO_MIG);
    *count = MAX_SLICES;
    return finish(OK);
}

int nvmlDeviceGetMigDeviceHandleByIndex(handle_t *h, unsigned index, handle_t **slice) {
    ON(h, NO_MIG);
    if (index >= MAX_SLICES || !gpu->slices[index].in_use) return finish(NOT_FOUND);
    *slice = &handles[h->gpu][index + 1];
    return finish(OK);
}

int nvmlDeviceGetAttributes_v2(handle_t *h, attributes_t *found) {
    ON(h, NO_MIG);
    if (!h->slice) return finish(INVALID);
    found->sms = gpu->slices[h->slice - 1].sm_count;
    found->mib = gpu->slices[h->slice - 1].memory_mib;
    return finish(OK);
}

int nvmlDeviceGetGpuInstanceId(handle_t *h, unsigned *instance) {
    ON(h, NO_MIG);
    if (!h->slice) return finish(INVALID);
    *instance = gpu->slices[h->slice - 1].gpu_instance;
    return finish(OK);
}

int nvmlDeviceGetComputeInstanceId(handle_t *h, unsigned *instance) {
    ON(h, NO_MIG);
    if (!h->slice) return finish(INVALID);
    *instance = 0;
    return finish(OK);
}

int nvmlDeviceGetGpuInstanceProfileInfoV(handle_t *h, unsigned number, profile_info *info) {
    ON_MIG(h, 0);
    if (number >= MAX_PROFILES) return finish(INVALID);
    const profile_t *profile = &gpu->profiles[number];
    if (!profile->size) return finish(NOT_SUPPORTED);
    if (info->version != (sizeof(profile_info) | 2U << 24)) return finish(25);
    info->id = profile->id;
    info->slices = profile->slices;
    info->most = profile->most;
    info->sms = profile->sms;
    info->memory_mib = profile->memory_mib;
    snprintf(info->name, sizeof info->name, "%s", profile->name);
    return finish(OK);
}

static const profile_t *profile_of(const gpu_t *gpu, unsigned id) {
    for (int i = 0; i < MAX_PROFILES; i++)
        if (gpu->profiles[i].size && gpu->profiles[i].id == id) return &gpu->profiles[i];
    return NULL;
}

static int is_free(const gpu_t *gpu, unsigned start, unsigned size) {
    for (int i = 0; i < MAX_SLICES; i++) {
        const slice_t *slice = &gpu->slices[i];
        if (slice->size && start < slice->start + slice->size && slice->start < start + size) return 0;
    }
    return 1;
}

int nvmlDeviceGetGpuInstancePossiblePlacements_v2(handle_t *h, unsigned id, place_t *list, unsigned *count) {
    ON_MIG(h, 1);
    const profile_t *profile = profile_of(gpu, id);
    if (!profile) return finish(INVALID);
    for (unsigned i = 0; list && i < profile->start_count && i < *count; i++)
        list[i] = (place_t){profile->starts[i], profile->size};
    *count = profile->start_count;
    return finish(OK);
}

int nvmlDeviceGetGpuInstanceRemainingCapacity(handle_t *h, unsigned id, unsigned *count) {
    ON_MIG(h, 1);
    const profile_t *profile = profile_of(gpu, id);
    if (!profile) return finish(INVALID);
    *count = 0;
    for (unsigned i = 0; i < profile->start_count; i++) *count += is_free(gpu, profile->starts[i], profile->size);
    return finish(OK);
}

static int make_instance(handle_t *h, gpu_t *gpu, const profile_t *profile, unsigned start, handle_t **made) {
    for (int i = 0; i < MAX_SLICES; i++) {
        slice_t *slice = &gpu->slices[i];
        if (slice->size) continue;
        *slice = (slice_t){.sm_count = profile->sms, .profile = profile->id, .start = start, .size = profile->size,
                           .gpu_instance = start + 1, .memory_mib = profile->memory_mib};
        snprintf(slice->name, sizeof slice->name, "NVIDIA H200 %s", profile->name);
        if (gpu->slice_count < (unsigned)i + 1) gpu->slice_count = i + 1;
        *made = &handles[h->gpu][i + 1];
        return OK;
    }
    return NO_ROOM;
}

int nvmlDeviceCreateGpuInstance(handle_t *h, unsigned id, handle_t **made) {
    ON_MIG(h, 1);
    const profile_t *profile = profile_of(gpu, id);
    if (!profile) return finish(INVALID);
    for (unsigned i = 0; i < profile->start_count; i++)
        if (is_free(gpu, profile->starts[i], profile->size)) {
            int code = make_instance(h, gpu, profile, profile->starts[i], made);
            return code == OK ? end_write(__func__) : finish(code);
        }
    return finish(NO_ROOM);
}

int nvmlDeviceCreateGpuInstanceWithPlacement(handle_t *h, unsigned id, const place_t *place, handle_t **made) {
    ON_MIG(h, 1);
    const profile_t *profile = profile_of(gpu, id);
    if (!profile || place->size != profile->size) return finish(INVALID);
    if (!is_free(gpu, place->start, place->size)) return finish(NO_ROOM);
    int code = make_instance(h, gpu, profile, place->start, made);
    return code == OK ? end_write(__func__) : finish(code);
}

int nvmlDeviceGetGpuInstances(handle_t *h, unsigned id, handle_t **list, unsigned *count) {
    ON_MIG(h, 1);
    *count = 0;
    for (int i = 0; i < MAX_SLICES; i++)
        if (gpu->slices[i].size && gpu->slices[i].profile == id) list[(*count)++] = &handles[h->gpu][i + 1];
    return finish(OK);
}

int nvmlDeviceGetGpuInstanceById(handle_t *h, unsigned id, handle_t **instance) {
    ON_MIG(h, 1);
    for (int i = 0; i < MAX_SLICES; i++)
        if (gpu->slices[i].size && gpu->slices[i].gpu_instance == id) {
            *instance = &handles[h->gpu][i + 1];
            return finish(OK);
        }
    return finish(NOT_FOUND);
}

int nvmlGpuInstanceGetInfo(handle_t *h, instance_info *info) {
    ON_MIG(h, 0);
    const slice_t *slice = &gpu->slices[h->slice - 1];
    *info = (instance_info){&handles[h->gpu][0], slice->gpu_instance, slice->profile, {slice->start, slice->size}};
    return finish(OK);
}

/* Of as many sevenths as the list's number says, up to all of the instance's; the one of all has the id of the GPU
 * instance's number of sevenths. */
int nvmlGpuInstanceGetComputeInstanceProfileInfoV(handle_t *h, unsigned number, unsigned engines, compute_info *info) {
    static const unsigned sevenths[] = {1, 2, 3, 4, 7};
    ON_MIG(h, 0);
    const profile_t *profile = profile_of(gpu, gpu->slices[h->slice - 1].profile);
    if (number > 8 || engines) return finish(INVALID);
    if (number > 4 || sevenths[number] > profile->slices) return finish(NOT_SUPPORTED);
    info->id = number;
    info->slices = sevenths[number];
    info->most = profile->slices / sevenths[number];
    info->sms = profile->sms * sevenths[number] / profile->slices;
    return finish(OK);
}

int nvmlGpuInstanceCreateComputeInstance(handle_t *h, unsigned number, handle_t **made) {
    ON_MIG(h, 1);
    slice_t *slice = &gpu->slices[h->slice - 1];
    if (slice->in_use) return finish(NO_ROOM);
    snprintf(slice->uuid, sizeof slice->uuid, "MIG-%u-%u-%llu", h->gpu, slice->gpu_instance,
             (unsigned long long)gpu->slices_made++);
    slice->in_use = number + 1;
    *made = h;
    return end_write(__func__);
}

int nvmlGpuInstanceGetComputeInstances(handle_t *h, unsigned number, handle_t **list, unsigned *count) {
    ON_MIG(h, 1);
    *count = gpu->slices[h->slice - 1].in_use == number + 1;
    if (*count) list[0] = h;
    return finish(OK);
}

static int is_busy(const gpu_t *gpu, const slice_t *slice) {
    for (uint32_t i = 0; i < gpu->process_count; i++)
        if (gpu->processes[i].gpu_instance == slice->gpu_instance) return 1;
    return 0;
}

int nvmlComputeInstanceDestroy(handle_t *h) {
    ON_MIG(h, 1);
    slice_t *slice = &gpu->slices[h->slice - 1];
    if (!slice->in_use) return finish(NOT_FOUND);
    if (is_busy(gpu, slice)) return finish(IN_USE);
    slice->in_use = 0;
    return end_write(__func__);
}

int nvmlGpuInstanceDestroy(handle_t *h) {
    ON_MIG(h, 1);
    slice_t *slice = &gpu->slices[h->slice - 1];
    if (slice->in_use || is_busy(gpu, slice)) return finish(IN_USE);
    *slice = (slice_t){0};
    return end_write(__func__);
}
