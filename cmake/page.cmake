# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
# A file as bytes of a C array: cmake -DINPUT=page.html -DOUTPUT=page.c -P page.cmake
file(READ ${INPUT} bytes HEX)
string(REGEX REPLACE "(................................)" "\\1\n" bytes "${bytes}")
string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${bytes}")
file(WRITE ${OUTPUT} "/* Made of page.html by cmake/page.cmake. */\n#include \"report/page.h\"\n"
    "const char fy_report_page[] = {\n${bytes}0};\n")
