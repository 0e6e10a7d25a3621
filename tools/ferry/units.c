/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "units.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

const char *format_bytes(double bytes, char text[UNIT_TEXT_BYTES])
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
    size_t unit = 0;
    while (bytes >= 1024 && unit + 1 < sizeof units / sizeof units[0]) {
        bytes /= 1024;
        unit++;
    }
    snprintf(text, UNIT_TEXT_BYTES, unit == 0 ? "%.0f %s" : "%.2f %s", bytes, units[unit]);
    return text;
}

/* Three digits that count, zeros behind the point left out: 0.753, 1.98, 16, 37.4, 340. */
static void write_digits(double value, char text[UNIT_TEXT_BYTES])
{
    int behind = value < 0.9995 ? 3 : value < 9.995 ? 2 : value < 99.95 ? 1 : 0;
    snprintf(text, UNIT_TEXT_BYTES, "%.*f", behind, value);
    if (behind > 0) {
        size_t length = strlen(text);
        while (text[length - 1] == '0') {
            length--;
        }
        length -= text[length - 1] == '.';
        text[length] = '\0';
    }
}

/* A value below a thousand of the largest unit that leaves one before the point. */
static const char *format_scaled(double value, const char *const *units, size_t n_units,
                                 char text[UNIT_TEXT_BYTES])
{
    size_t unit = 0;
    while (value >= 999.5 && unit + 1 < n_units) {
        value /= 1000;
        unit++;
    }
    write_digits(value, text);
    size_t length = strlen(text);
    snprintf(text + length, UNIT_TEXT_BYTES - length, " %s", units[unit]);
    return text;
}

const char *format_seconds(double seconds, char text[UNIT_TEXT_BYTES])
{
    static const char *const units[] = {"ns", "us", "ms", "s"};
    if (!(seconds > 0)) {
        snprintf(text, UNIT_TEXT_BYTES, "0 s");
    } else if (seconds < 59.95) {
        format_scaled(seconds * 1e9, units, sizeof units / sizeof units[0], text);
    } else if (seconds < 3599.5) {
        unsigned whole = (unsigned)lround(seconds);
        snprintf(text, UNIT_TEXT_BYTES, "%u min %u s", whole / 60, whole % 60);
    } else if (seconds < 1e9) {
        uint64_t minutes = (uint64_t)llround(seconds / 60);
        snprintf(text, UNIT_TEXT_BYTES, "%llu h %llu min", (unsigned long long)(minutes / 60),
                 (unsigned long long)(minutes % 60));
    } else {
        snprintf(text, UNIT_TEXT_BYTES, "%.3g s", seconds);
    }
    return text;
}

const char *format_count(uint64_t n, char text[UNIT_TEXT_BYTES])
{
    char digits[UNIT_TEXT_BYTES];
    size_t length = (size_t)snprintf(digits, sizeof digits, "%llu", (unsigned long long)n), at = 0;
    for (size_t i = 0; i < length; i++) {
        if (i > 0 && (length - i) % 3 == 0) {
            text[at++] = ',';
        }
        text[at++] = digits[i];
    }
    text[at] = '\0';
    return text;
}

const char *plural(uint64_t n)
{
    return n == 1 ? "" : "s";
}

const char *format_times(double factor, char text[UNIT_TEXT_BYTES])
{
    if (factor >= 1e15) { /* its digits would not fit */
        snprintf(text, UNIT_TEXT_BYTES, "%.3gx", factor);
        return text;
    }
    write_digits(factor, text);
    strcat(text, "x");
    return text;
}

const char *format_rate(double bytes_per_s, char text[UNIT_TEXT_BYTES])
{
    static const char *const units[] = {"B/s", "KB/s", "MB/s", "GB/s"};
    return format_scaled(bytes_per_s, units, sizeof units / sizeof units[0], text);
}
