# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
# Writes the texts of files to a source file, as a table of TYPE that is called TABLE and ends with a
# row of zeros; HEADER declares both. A row has the file's name up to the first dot, its text, and its length.
#   cmake -DOUT=... -DFILES=... -DHEADER=... -DTYPE=... -DTABLE=... -P texts.cmake
set(texts "")
set(rows "")
set(number 0)
foreach(file ${FILES})
    get_filename_component(name ${file} NAME_WE)
    file(READ ${file} bytes HEX)
    string(REGEX REPLACE "(................................)" "\\1\n" bytes "${bytes}")
    string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${bytes}")
    string(APPEND texts "static const char text_${number}[] = {\n${bytes}0};\n")
    string(APPEND rows "    {\"${name}\", text_${number}, sizeof text_${number} - 1},\n")
    math(EXPR number "${number} + 1")
endforeach()
file(WRITE ${OUT} "/* Made by cmake/texts.cmake. */
#include \"${HEADER}\"

${texts}
const ${TYPE} ${TABLE}[] = {
${rows}    {NULL, NULL, 0},
};
")
