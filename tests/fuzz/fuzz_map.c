/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * Any text as a ferry.map/1: what is one is written and read to the same, and a map that has an
 * inverse comes back from it. Composed with its inverse, it leaves every element where it is.
 */
#include "fuzz.h"

#include "../support/text.h"

static text_buffer written(const ferry_map *map)
{
    text_buffer text = {0};
    ferry_error error = {""};
    promise(ferry_map_write_json(map, text_write, &text, &error) == FERRY_OK);
    return text;
}

static void promise_equal(const ferry_map *a, const ferry_map *b)
{
    text_buffer x = written(a), y = written(b);
    promise(x.used == y.used && memcmp(x.bytes, y.bytes, x.used) == 0);
    text_cleanup(&x);
    text_cleanup(&y);
}

static void read_again(const ferry_map *map)
{
    text_buffer text = written(map);
    ferry_map *again = NULL;
    ferry_error error = {""};
    promise(ferry_map_parse(text.bytes, text.used, "again", &again, &error) == FERRY_OK);
    promise_equal(map, again);
    text_cleanup(&text);
    ferry_map_destroy(again);
}

static void turn_round(const ferry_map *map)
{
    ferry_map *inverse = NULL, *back = NULL, *both = NULL;
    ferry_error error = {""};
    ferry_status status = ferry_map_invert(map, &inverse, &error);
    check_sentence(status, &error);
    if (status != FERRY_OK) {
        return;
    }
    promise(ferry_map_invert(inverse, &back, &error) == FERRY_OK);
    promise_equal(map, back);
    promise(ferry_map_compose(map, inverse, &both, &error) == FERRY_OK);
    promise(ferry_map_target_count(both) == ferry_map_source_count(map));
    ferry_map_destroy(inverse);
    ferry_map_destroy(back);
    ferry_map_destroy(both);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    ferry_error error = {""};
    ferry_map *map = NULL;
    ferry_status status = ferry_map_parse((const char *)data, size, "fuzz", &map, &error);
    check_sentence(status, &error);
    promise((map != NULL) == (status == FERRY_OK));
    if (map != NULL && ferry_map_target_count(map) + ferry_map_box_count(map) < 10000) {
        read_again(map);
        turn_round(map);
    }
    ferry_map_destroy(map);
    return 0;
}
