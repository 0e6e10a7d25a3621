# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
# Writes the texts of ferry.names/1 files to a source file: cmake -DOUT=... -DNAMES=... -P names.cmake
set(texts "")
set(rows "")
set(number 0)
foreach(file ${NAMES})
    get_filename_component(name ${file} NAME_WE)
    file(READ ${file} bytes HEX)
    string(REGEX REPLACE "(................................)" "\\1\n" bytes "${bytes}")
    string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${bytes}")
    string(APPEND texts "static const char text_${number}[] = {\n${bytes}0};\n")
    string(APPEND rows "    {\"${name}\", text_${number}, sizeof text_${number} - 1},\n")
    math(EXPR number "${number} + 1")
endforeach()
file(WRITE ${OUT} "/* Made of names/ by cmake/names.cmake. */
#include \"model/naming.h\"

${texts}
const fy_naming_text fy_naming_texts[] = {
${rows}    {NULL, NULL, 0},
};
")
