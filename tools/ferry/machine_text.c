/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "machine_text.h"

#include "units.h"

#include <stdio.h>

void print_machine(const ferry_machine *machine)
{
    char text[2][32];
    printf("  CPUs                 %u\n", machine->n_cpus);
    printf("  memory               %s, of which this process can have %s now\n",
           format_bytes((double)machine->memory_bytes, text[0]),
           format_bytes((double)machine->room_bytes, text[1]));
    if (machine->huge_page_bytes == 0) {
        printf("  huge pages           none\n");
    } else {
        printf("  huge pages           of %s, %s free for shared memory\n",
               format_bytes((double)machine->huge_page_bytes, text[0]),
               format_count(machine->n_free_huge_pages, text[1]));
    }
    printf("  cross-memory attach  %s\n", machine->cross_memory_attach ? "allowed" : "denied");
    if (machine->copy_gbytes_per_s > 0) {
        printf("  copying              %.1f GB/s with one thread, %.1f GB/s with one on each CPU\n",
               machine->copy_gbytes_per_s, machine->copy_all_gbytes_per_s);
    } else {
        printf("  copying              not measured\n");
    }
}

static void print_rate(const char *name, double rate)
{
    if (rate > 0) {
        printf(",\"%s\":%.3f", name, rate);
    } else {
        printf(",\"%s\":null", name);
    }
}

void print_machine_json(const ferry_machine *machine)
{
    printf("{\"cpus\":%u,\"memory_bytes\":%llu,\"room_bytes\":%llu,\"huge_page_bytes\":%llu,"
           "\"free_huge_pages\":%llu,\"cross_memory_attach\":%s",
           machine->n_cpus, (unsigned long long)machine->memory_bytes,
           (unsigned long long)machine->room_bytes, (unsigned long long)machine->huge_page_bytes,
           (unsigned long long)machine->n_free_huge_pages,
           machine->cross_memory_attach ? "true" : "false");
    print_rate("copy_gbytes_per_s", machine->copy_gbytes_per_s);
    print_rate("copy_all_gbytes_per_s", machine->copy_all_gbytes_per_s);
    putchar('}');
}
