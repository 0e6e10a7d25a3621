/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include <ferry/ferry.h>

const char *ferry_version(void)
{
    return FERRY_VERSION_TEXT;
}
