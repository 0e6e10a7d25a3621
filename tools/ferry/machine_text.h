/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FERRY_TOOL_MACHINE_TEXT_H
#define FERRY_TOOL_MACHINE_TEXT_H

#include <ferry/ferry.h>

/* Of this machine, on stdout: indented lines for people, or an object for machines. */
void print_machine(const ferry_machine *machine);
void print_machine_json(const ferry_machine *machine);

#endif
