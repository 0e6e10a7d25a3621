/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "host/room.h"

#include "base/alloc.h"
#include "base/checked.h"
#include "base/print.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

/*
 * Files of /proc and of cgroups have no size that stat tells, so they are read until they end.
 * *text_out is NULL if the file is missing or may not be read: then it limits nothing.
 */
static ferry_status read_text(const char *folder, const char *name, char **text_out,
                              ferry_error *error)
{
    char path[PATH_MAX];
    ferry_status status = FERRY_OK;
    char *text = NULL;
    size_t used = 0, capacity = 0;
    *text_out = NULL;
    if (snprintf(path, sizeof path, "%s/%s", folder, name) >= (int)sizeof path) {
        return FERRY_OK;
    }
    int descriptor = open(path, O_RDONLY | O_CLOEXEC);
    if (descriptor < 0 && (errno == EMFILE || errno == ENFILE)) {
        return fy_fail(error, FERRY_ERR_LIMIT,
                       "%s cannot be read, for no descriptor is left (ulimit -n): %s", path,
                       strerror(errno));
    }
    if (descriptor < 0) {
        return FERRY_OK;
    }
    for (;;) {
        if (!FY_RESERVE(text, capacity, used + 4096)) {
            status = fy_fail_no_memory(error, path);
            goto out;
        }
        ssize_t now = read(descriptor, text + used, capacity - used - 1);
        if (now < 0 && errno == EINTR) {
            continue;
        }
        if (now <= 0) {
            text[used] = '\0';
            if (now == 0) {
                *text_out = text;
                text = NULL; /* the caller owns it now */
            }
            goto out;
        }
        used += (size_t)now;
    }
out:
    close(descriptor);
    fy_free(text);
    return status;
}

/* A file of one number; "max", what is not a number and a missing file leave the value as it is. */
static ferry_status read_number(const char *folder, const char *name, uint64_t *value_inout,
                                bool *is_there_out, ferry_error *error)
{
    char *text;
    ferry_status status = read_text(folder, name, &text, error);
    if (is_there_out != NULL) {
        *is_there_out = text != NULL;
    }
    if (text != NULL && text[0] >= '0' && text[0] <= '9') {
        *value_inout = strtoull(text, NULL, 10);
    }
    fy_free(text);
    return status;
}

/* The number behind a key that begins a line, such as "MemFree:" or "active_file"; else 0. */
static uint64_t number_of_key(const char *text, const char *key)
{
    size_t length = strlen(key);
    for (const char *line = text; line != NULL && *line != '\0';) {
        if (strncmp(line, key, length) == 0 && (line[length] == ' ' || line[length] == '\t')) {
            return strtoull(line + length, NULL, 10);
        }
        line = strchr(line, '\n');
        line = line == NULL ? NULL : line + 1;
    }
    return 0;
}

/* Takes the limit if it leaves less than the one found so far. A long name is cut. */
static void consider(fy_room_found *found, uint64_t allowed, uint64_t used, const char *before,
                     const char *name, const char *behind)
{
    uint64_t free_bytes = allowed > used ? allowed - used : 0;
    uint64_t reserve = FY_ROOM_RESERVE_BYTES + free_bytes / FY_ROOM_RESERVE_PART;
    uint64_t room = free_bytes > reserve ? free_bytes - reserve : 0;
    if (found->limit[0] == '\0' || room < found->room_bytes) {
        found->room_bytes = room;
        found->allowed_bytes = allowed;
        found->used_bytes = used;
        snprintf(found->limit, sizeof found->limit, "%s%.400s%s", before, name, behind);
    }
}

static ferry_status consider_machine(const char *proc, fy_room_found *found, ferry_error *error)
{
    char *text;
    FY_TRY(read_text(proc, "meminfo", &text, error));
    uint64_t total = text == NULL ? 0 : number_of_key(text, "MemTotal:");
    uint64_t available = text == NULL ? 0 : number_of_key(text, "MemAvailable:");
    fy_free(text);
    if (total == 0 || total > UINT64_MAX / 1024 || available > total) {
        return fy_fail(
            error, FERRY_ERR_IO,
            "%s/meminfo: does not say how much memory the machine has; is /proc mounted?", proc);
    }
    consider(found, total * 1024, (total - available) * 1024, "the machine has", "", "");
    return FERRY_OK;
}

static ferry_status consider_address_space(const char *proc, uint64_t limit, fy_room_found *found,
                                           ferry_error *error)
{
    uint64_t pages = 0;
    bool is_there;
    if (limit == UINT64_MAX) {
        return FERRY_OK;
    }
    FY_TRY(read_number(proc, "self/statm", &pages, &is_there, error));
    if (is_there) {
        consider(found, limit, pages * (uint64_t)sysconf(_SC_PAGESIZE),
                 "the limit on address space (RLIMIT_AS, ulimit -v) is", "", "");
    }
    return FERRY_OK;
}

/* What differs between the two versions of cgroups. */
static const struct version {
    const char *type;   /* of the file system */
    const char *limits; /* file */
    const char *softer; /* file: beyond it the kernel slows the group down to reclaim */
    const char *usage;  /* file */
    const char *inactive;
    const char *active;
} versions[] = {
    {"cgroup", "memory.limit_in_bytes", NULL, "memory.usage_in_bytes", "total_inactive_file",
     "total_active_file"},
    {"cgroup2", "memory.max", "memory.high", "memory.current", "inactive_file", "active_file"},
};

/*
 * Page cache on the inactive list can be dropped, and half of the active one: dropping all of that
 * would make programs read their own text again and again. Shared memory is on neither list.
 */
static ferry_status consider_group(const struct version *v, const char *folder, const char *name,
                                   fy_room_found *found, ferry_error *error)
{
    uint64_t allowed = UINT64_MAX, softer = UINT64_MAX, used = 0;
    bool has_usage = false;
    char *text = NULL;
    ferry_status status = read_number(folder, v->limits, &allowed, NULL, error);
    if (status == FERRY_OK && v->softer != NULL) {
        status = read_number(folder, v->softer, &softer, NULL, error);
    }
    allowed = fy_min(allowed, softer);
    FY_THEN(status, read_number(folder, v->usage, &used, &has_usage, error));
    if (status != FERRY_OK || allowed == UINT64_MAX || !has_usage) {
        return status;
    }
    status = read_text(folder, "memory.stat", &text, error);
    if (text != NULL) {
        uint64_t cache = number_of_key(text, v->inactive) + number_of_key(text, v->active) / 2;
        used -= fy_min(used, cache);
    }
    fy_free(text);
    if (status == FERRY_OK) {
        consider(found, allowed, used, "the cgroup ", name, " allows");
    }
    return status;
}

/* Whether one of the words between commas is wanted; the list ends with its string. */
static bool has_word(const char *list, const char *wanted)
{
    size_t length = strlen(wanted);
    for (const char *at = list; *at != '\0';) {
        size_t word = strcspn(at, ",");
        if (word == length && memcmp(at, wanted, length) == 0) {
            return true;
        }
        at += word + (at[word] == ',');
    }
    return false;
}

/* Spaces and other odd bytes of paths are written as \040 there. */
static void unescape(char *text)
{
    char *to = text;
    for (const char *from = text; *from != '\0'; to++) {
        if (from[0] == '\\' && from[1] >= '0' && from[1] <= '3' && from[2] >= '0' &&
            from[2] <= '7' && from[3] >= '0' && from[3] <= '7') {
            *to = (char)((from[1] - '0') * 64 + (from[2] - '0') * 8 + (from[3] - '0'));
            from += 4;
        } else {
            *to = *from++;
        }
    }
    *to = '\0';
}

/*
 * A line of mountinfo, cut up in place: "36 35 98:0 ROOT PLACE options [more]... - TYPE source
 * SUPER". Whether it is a mount of these cgroups with the memory controller.
 */
static bool parse_mount(char *line, const struct version *v, char **root_out, char **place_out)
{
    char *fields[5] = {0}, *rest = line, *type, *super;
    char *tail = strstr(line, " - ");
    if (tail == NULL) {
        return false;
    }
    *tail = '\0';
    for (size_t i = 0; i < 5; i++) {
        fields[i] = strsep(&rest, " ");
    }
    rest = tail + 3;
    type = strsep(&rest, " ");
    strsep(&rest, " ");
    super = rest;
    if (fields[4] == NULL || super == NULL || strcmp(type, v->type) != 0) {
        return false;
    }
    unescape(fields[3]);
    unescape(fields[4]);
    *root_out = fields[3];
    *place_out = fields[4];
    return strcmp(type, "cgroup2") == 0 || has_word(super, "memory");
}

/* The part of a path that is below root, "" if it is root itself; NULL if it is elsewhere. */
static const char *below(const char *path, const char *root)
{
    size_t length = strcmp(root, "/") == 0 ? 0 : strlen(root);
    if (strncmp(path, root, length) != 0 || (path[length] != '/' && path[length] != '\0')) {
        return NULL;
    }
    return strcmp(path + length, "/") == 0 ? "" : path + length;
}

/*
 * The group of the process and all above it that this mount shows. A mount that does not show the
 * path, as in a container that was given its own group alone, has the group at its root.
 */
static ferry_status consider_path(const struct version *v, const char *root, const char *place,
                                  const char *path, fy_room_found *found, ferry_error *error)
{
    char folder[PATH_MAX], name[PATH_MAX];
    const char *shown = below(path, root);
    if (strncmp(path, "/..", 3) == 0) {
        return FERRY_OK; /* the process is outside of what its namespace shows */
    }
    if (snprintf(folder, sizeof folder, "%s%s", place, shown == NULL ? "" : shown) >=
            (int)sizeof folder ||
        snprintf(name, sizeof name, "%s", path) >= (int)sizeof name) {
        return FERRY_OK;
    }
    for (;;) {
        ferry_status status = consider_group(v, folder, name[0] == '\0' ? "/" : name, found, error);
        char *slash = strrchr(folder, '/');
        if (status != FERRY_OK || slash == NULL || slash < folder + strlen(place)) {
            return status;
        }
        *slash = '\0';
        slash = strrchr(name, '/');
        if (slash != NULL) {
            *slash = '\0';
        }
    }
}

/* All mounts of these cgroups: each shows as much of the tree as its root allows. */
static ferry_status consider_mounts(const struct version *v, const char *mounts, const char *path,
                                    fy_room_found *found, ferry_error *error)
{
    ferry_status status = FERRY_OK;
    char *copy = fy_strdup(mounts), *rest = copy, *line, *root, *place;
    FY_TRY(fy_check_memory(copy != NULL, "the list of mounts", error));
    while (status == FERRY_OK && (line = strsep(&rest, "\n")) != NULL) {
        if (parse_mount(line, v, &root, &place)) {
            status = consider_path(v, root, place, path, found, error);
        }
    }
    fy_free(copy);
    return status;
}

/* Lines of self/cgroup: "4:memory:/jobs/7" in version 1, "0::/jobs/7" in version 2. */
static ferry_status consider_groups(const char *proc, fy_room_found *found, ferry_error *error)
{
    char *groups = NULL, *mounts = NULL, *rest, *line;
    ferry_status status = read_text(proc, "self/cgroup", &groups, error);
    FY_THEN(status, read_text(proc, "self/mountinfo", &mounts, error));
    rest = groups;
    while (status == FERRY_OK && mounts != NULL && (line = strsep(&rest, "\n")) != NULL) {
        const char *number = strsep(&line, ":"), *controllers = strsep(&line, ":");
        if (controllers == NULL || line == NULL) {
            continue;
        }
        if (has_word(controllers, "memory")) {
            status = consider_mounts(&versions[0], mounts, line, found, error);
        } else if (strcmp(number, "0") == 0 && controllers[0] == '\0') {
            status = consider_mounts(&versions[1], mounts, line, found, error);
        }
    }
    fy_free(groups);
    fy_free(mounts);
    return status;
}

ferry_status fy_room_look(const char *proc, uint64_t address_space_bytes, fy_room_found *found_out,
                          ferry_error *error)
{
    fy_room_found found = {0};
    FY_TRY(consider_machine(proc, &found, error));
    FY_TRY(consider_groups(proc, &found, error));
    FY_TRY(consider_address_space(proc, address_space_bytes, &found, error));
    *found_out = found;
    return FERRY_OK;
}

static const char *size_text(uint64_t bytes, char text[32])
{
    if (bytes >= (uint64_t)1 << 30) {
        fy_print(text, 32, "%.1f GiB", (double)bytes / (double)((uint64_t)1 << 30));
    } else {
        fy_print(text, 32, "%.1f MiB", (double)bytes / (double)((uint64_t)1 << 20));
    }
    return text;
}

ferry_status fy_room_check_found(const fy_room_found *found, uint64_t bytes, const char *what,
                                 ferry_error *error)
{
    char needed[32], allowed[32], used[32], room[32];
    if (bytes <= found->room_bytes) {
        return FERRY_OK;
    }
    return fy_fail(error, FERRY_ERR_NO_MEMORY,
                   "%s needs %s, but %s %s and %s are used, which leaves room for %s", what,
                   size_text(bytes, needed), found->limit, size_text(found->allowed_bytes, allowed),
                   size_text(found->used_bytes, used), size_text(found->room_bytes, room));
}

static ferry_status look_here(fy_room_found *found_out, ferry_error *error)
{
    struct rlimit limit;
    uint64_t address_space = UINT64_MAX;
    if (getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
        address_space = limit.rlim_cur;
    }
    return fy_room_look("/proc", address_space, found_out, error);
}

ferry_status fy_room(uint64_t *bytes_out, ferry_error *error)
{
    fy_room_found found;
    FY_TRY(look_here(&found, error));
    *bytes_out = found.room_bytes;
    return FERRY_OK;
}

ferry_status fy_room_check(uint64_t bytes, const char *what, ferry_error *error)
{
    fy_room_found found;
    FY_TRY(look_here(&found, error));
    return fy_room_check_found(&found, bytes, what, error);
}
