/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* ferry draw: the boxes of a picture as SVG. */
#include "draw.h"
#include "plan.h"
#include "units.h"

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

/* Sizes in pixels at 100 %. */
enum {
    MARGIN = 20,
    MATRIX = 190,   /* the longer side of a matrix */
    SHORTEST = 112, /* the shorter side, however thin the tensor is */
    GAP = 26,
    CAPTION = 20, /* the line above a matrix */
    HEAD = 66,    /* the lines above all */
    FOOT = 50,
    ARROW = 70,
    RIGHT_COLUMNS = 2,
    WORD_WIDTH = 46, /* of "rank 12" */
    NUMBER_WIDTH = 12,
    THINNEST = 3, /* a box whose outline would not cover it */
    TEXT_HEIGHT = 14,
    FROM_WIDTH = 104, /* of a box that says both whose it is and where it comes from */
    MOST_NAME = 64
};

typedef struct canvas {
    FILE *file;
    const draw_picture *picture;
} canvas;

typedef struct place {
    double x;
    double y;
    double width;
    double height;
} place;

/* Names come from files: no byte of theirs may be markup. */
static void put_text(FILE *file, const char *text, size_t most)
{
    size_t length = strlen(text);
    /* The end of a long name says more than its beginning. */
    if (length > most) {
        fputs("…", file);
        text += length - most;
        while (((unsigned char)*text & 0xc0) == 0x80) { /* not within a character */
            text++;
        }
    }
    for (; *text != '\0'; text++) {
        const char *word = *text == '<'   ? "&lt;"
                           : *text == '>' ? "&gt;"
                           : *text == '&' ? "&amp;"
                           : *text == '"' ? "&quot;"
                                          : NULL;
        if (word != NULL) {
            fputs(word, file);
        } else {
            fputc((unsigned char)*text < ' ' ? ' ' : *text, file);
        }
    }
}

/* Source ranks get hues in turn, neighbours far apart; from the tenth on other shades of these. */
static void put_colour(const canvas *c, uint32_t rank)
{
    static const unsigned char hues[][3] = {
        {0x7f, 0xb3, 0xe6}, {0xf2, 0xa3, 0x65}, {0x8f, 0xd1, 0x8a},
        {0xd9, 0x9a, 0xe0}, {0xf2, 0xd3, 0x5e}, {0x79, 0xd2, 0xcf},
        {0xf0, 0x8a, 0x96}, {0xb7, 0xa6, 0x8f}, {0xa9, 0xa9, 0xf0}};
    const size_t n_hues = sizeof hues / sizeof hues[0];
    size_t turn = 0;
    while (turn < c->picture->n_senders && c->picture->senders[turn] != rank) {
        turn++;
    }
    const unsigned char *hue = hues[turn % n_hues];
    unsigned shade = 100 - 14 * (unsigned)(turn / n_hues % 4);
    fprintf(c->file, "#%02x%02x%02x", hue[0] * shade / 100, hue[1] * shade / 100,
            hue[2] * shade / 100);
}

/* The longer side gets MATRIX pixels, the shorter in proportion while it can be read. */
static place size_of(const draw_matrix *matrix)
{
    double rows = (double)matrix->n_rows, columns = (double)matrix->n_columns;
    double most = rows > columns ? rows : columns;
    place where = {0, 0, MATRIX, MATRIX};
    if (most > 0) {
        where.width = fmax(SHORTEST, MATRIX * columns / most);
        where.height = fmax(SHORTEST, MATRIX * rows / most);
    }
    return where;
}

static place place_box(const draw_matrix *matrix, place in, const draw_box *box)
{
    double x = in.width / (double)matrix->n_columns, y = in.height / (double)matrix->n_rows;
    return (place){in.x + (double)box->column * x, in.y + (double)box->row * y,
                   (double)box->n_columns * x, (double)box->n_rows * y};
}

static void put_box(FILE *file, const char *class, place at)
{
    fprintf(file, "<rect class=\"%s\" x=\"%.2f\" y=\"%.2f\" width=\"%.2f\" height=\"%.2f\"", class,
            at.x, at.y, at.width, at.height);
}

/* Whose box it is: in the middle, or above what says "from 3". */
static void put_owner(FILE *file, const draw_box *box, place at, bool has_from)
{
    if (at.height < TEXT_HEIGHT || at.width < NUMBER_WIDTH) {
        return;
    }
    bool left = has_from && at.width >= FROM_WIDTH;
    double x = left ? at.x + 6 : at.x + at.width / 2;
    double y = at.y + (has_from ? TEXT_HEIGHT : at.height / 2 + 4);
    fprintf(file, "<text class=\"in\" x=\"%.2f\" y=\"%.2f\"%s>%s%u</text>\n", x, y,
            left ? "" : " text-anchor=\"middle\"", at.width < WORD_WIDTH ? "" : "rank ", box->rank);
}

static void put_from(FILE *file, const draw_box *fill, place at)
{
    if (at.height < TEXT_HEIGHT || at.width < FROM_WIDTH) {
        return;
    }
    fprintf(file, "<text class=\"in from\" x=\"%.2f\" y=\"%.2f\" text-anchor=\"end\">",
            at.x + at.width - 6, at.y + at.height / 2 + 4);
    if (fill->from == fill->rank) {
        fputs("stays</text>\n", file);
    } else {
        fprintf(file, "from %u</text>\n", fill->from);
    }
}

/* A rank whose part is in several boxes is named once, in the largest. */
static bool is_largest(const draw_boxes *boxes, size_t index)
{
    const draw_box *own = &boxes->at[index];
    for (size_t i = 0; i < boxes->n; i++) {
        const draw_box *other = &boxes->at[i];
        double size = (double)other->n_rows * (double)other->n_columns;
        double mine = (double)own->n_rows * (double)own->n_columns;
        if (other->rank == own->rank && (size > mine || (size == mine && i < index))) {
            return false;
        }
    }
    return true;
}

static void put_caption(const canvas *c, const draw_side *side, const draw_matrix *matrix, place at)
{
    size_t copies = 0;
    for (size_t i = 0; i < side->n; i++) {
        copies += strcmp(side->matrices[i].tensor, matrix->tensor) == 0;
    }
    bool other = strcmp(matrix->tensor, c->picture->tensor) != 0;
    if (!other && copies == 1) {
        return;
    }
    fprintf(c->file, "<text class=\"small\" x=\"%.2f\" y=\"%.2f\">", at.x, at.y - 6);
    if (other) {
        put_text(c->file, matrix->tensor, 26);
    }
    if (copies > 1) {
        fprintf(c->file, "%scopy %zu", other ? ", " : "", matrix->copy + 1);
    }
    fputs("</text>\n", c->file);
}

/* What a browser shows where the pointer rests. */
static void put_tip(FILE *file, const draw_box *fill, ferry_side_role kind)
{
    fprintf(file, "\"><title>rank %u, rows %llu-%llu, columns %llu-%llu", fill->rank,
            (unsigned long long)fill->row, (unsigned long long)(fill->row + fill->n_rows - 1),
            (unsigned long long)fill->column,
            (unsigned long long)(fill->column + fill->n_columns - 1));
    if (kind == FERRY_SIDE_DESTINATION) {
        fprintf(file, ", from rank %u", fill->from);
    }
    fputs("</title></rect>\n", file);
}

static void put_matrix(const canvas *c, ferry_side_role kind, const draw_matrix *matrix, place at)
{
    const draw_side *side = &c->picture->sides[kind];
    fprintf(c->file, "<g class=\"%s\"><title>",
            kind == FERRY_SIDE_SOURCE ? "source" : "destination");
    put_text(c->file, matrix->tensor, FERRY_ERROR_BYTES);
    fputs("</title>\n", c->file);
    put_caption(c, side, matrix, at);
    put_box(c->file, "whole", at);
    fputs("/>\n", c->file);
    for (size_t i = 0; i < matrix->fills.n; i++) {
        put_box(c->file, "fill", place_box(matrix, at, &matrix->fills.at[i]));
        fputs(" fill=\"", c->file);
        put_colour(c, matrix->fills.at[i].from);
        put_tip(c->file, &matrix->fills.at[i], kind);
    }
    for (size_t i = 0; i < matrix->held.n; i++) {
        place box = place_box(matrix, at, &matrix->held.at[i]);
        if (box.width >= THINNEST && box.height >= THINNEST) {
            put_box(c->file, "held", box);
            fputs("/>\n", c->file);
        }
        if (is_largest(&matrix->held, i)) {
            put_owner(c->file, &matrix->held.at[i], box, kind == FERRY_SIDE_DESTINATION);
        }
    }
    for (size_t i = 0; kind == FERRY_SIDE_DESTINATION && i < matrix->fills.n; i++) {
        put_from(c->file, &matrix->fills.at[i], place_box(matrix, at, &matrix->fills.at[i]));
    }
    fputs("</g>\n", c->file);
}

/* Draws a side's matrices in rows, or measures them where c is NULL. Returns the height. */
static double put_side(const canvas *c, ferry_side_role kind, const draw_side *side,
                       size_t n_columns, double x, double y)
{
    double tallest = 0, top = y;
    for (size_t i = 0; i < side->n; i++) {
        place at = size_of(&side->matrices[i]);
        if (i > 0 && i % n_columns == 0) {
            top += tallest + CAPTION + GAP;
            tallest = 0;
        }
        at.x = x + (double)(i % n_columns) * (MATRIX + GAP);
        at.y = top + CAPTION;
        tallest = fmax(tallest, at.height);
        if (c != NULL) {
            put_matrix(c, kind, &side->matrices[i], at);
        }
    }
    return top + tallest + CAPTION - y;
}

static void put_title(const canvas *c, ferry_side_role kind, double x)
{
    const draw_side *side = &c->picture->sides[kind];
    fprintf(c->file, "<text class=\"side\" x=\"%.2f\" y=\"%d\">%s: %zu rank%s</text>\n", x,
            HEAD - 12, kind == FERRY_SIDE_SOURCE ? "Source" : "Destination", side->n_ranks,
            side->n_ranks == 1 ? "" : "s");
    if (side->n_left_out > 0) {
        fprintf(c->file,
                "<text class=\"small\" x=\"%.2f\" y=\"%d\">%zu more hold further copies</text>\n",
                x, HEAD + 4, side->n_left_out);
    }
}

static void put_head(const canvas *c, double width, double height)
{
    const draw_picture *p = c->picture;
    char dtype[FERRY_DTYPE_TEXT_BYTES];
    fprintf(c->file,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %.0f %.0f\" width=\"%.0f\" "
            "height=\"%.0f\" role=\"img\">\n<title>",
            width, height, width, height);
    put_text(c->file, p->tensor, FERRY_ERROR_BYTES);
    fputs(", from one layout to another</title>\n<style>\n"
          "text { font: 12px system-ui, sans-serif; fill: #24292f; }\n"
          ".name { font-weight: 600; font-size: 14px; }\n"
          ".side { font-weight: 600; }\n"
          ".small { font-size: 11px; fill: #57606a; }\n"
          ".whole { fill: none; stroke: #8c959f; stroke-dasharray: 3 3; }\n"
          ".held { fill: none; stroke: #24292f; stroke-width: 1.5; }\n"
          ".arrow { stroke: #57606a; stroke-width: 2; fill: none; }\n"
          "text.in { fill: #16191d; }\n"
          "text.from { font-size: 11px; }\n"
          "@media (prefers-color-scheme: dark) {\n"
          "text { fill: #e6edf3; }\n.small { fill: #9da7b1; }\n.whole { stroke: #6e7681; }\n"
          ".held { stroke: #e6edf3; }\n.arrow { stroke: #9da7b1; }\n}\n"
          "</style>\n",
          c->file);
    fprintf(c->file, "<text class=\"name\" x=\"%d\" y=\"26\">", MARGIN);
    put_text(c->file, p->tensor, MOST_NAME);
    fputs(" [", c->file);
    for (uint32_t d = 0; d < p->n_dims; d++) {
        fprintf(c->file, "%s%llu", d == 0 ? "" : " x ", (unsigned long long)p->shape[d]);
    }
    ferry_dtype_format(p->dtype, dtype, sizeof dtype);
    fprintf(c->file, "] %s</text>\n", dtype);
}

static void put_foot(const canvas *c, double y)
{
    char moved[32], local[32];
    fprintf(c->file,
            "<text class=\"small\" x=\"%d\" y=\"%.2f\">A box is what a rank holds, its colour the "
            "source rank that the values come from.</text>\n",
            MARGIN, y);
    fprintf(c->file,
            "<text class=\"small\" x=\"%d\" y=\"%.2f\">%s go from rank to rank, %s stay on their "
            "rank.</text>\n</svg>\n",
            MARGIN, y + 16, format_bytes((double)c->picture->moved_bytes, moved),
            format_bytes((double)c->picture->local_bytes, local));
}

ferry_status draw_write_svg(const void *context, FILE *file, ferry_error *error)
{
    canvas c = {file, context};
    const draw_side *source = &c.picture->sides[FERRY_SIDE_SOURCE];
    const draw_side *destination = &c.picture->sides[FERRY_SIDE_DESTINATION];
    size_t columns = destination->n < RIGHT_COLUMNS ? destination->n : RIGHT_COLUMNS;
    double right = MARGIN + MATRIX + ARROW;
    double width = right + (double)columns * (MATRIX + GAP) - GAP + MARGIN;
    double left_height = put_side(NULL, FERRY_SIDE_SOURCE, source, 1, 0, 0);
    double right_height = put_side(NULL, FERRY_SIDE_DESTINATION, destination, columns, 0, 0);
    double height = fmax(left_height, right_height);
    double first = source->n == 0 ? MATRIX : size_of(&source->matrices[0]).height;
    double middle = HEAD + CAPTION + first / 2;
    width = fmax(width, 2 * MARGIN + 480);
    put_head(&c, width, HEAD + height + FOOT);
    put_title(&c, FERRY_SIDE_SOURCE, MARGIN);
    put_title(&c, FERRY_SIDE_DESTINATION, right);
    put_side(&c, FERRY_SIDE_SOURCE, source, 1, MARGIN, HEAD);
    fprintf(file, "<path class=\"arrow\" d=\"M%.1f %.1f h30 m-8 -6 l8 6 l-8 6\"/>\n",
            MARGIN + MATRIX + 20.0, middle);
    put_side(&c, FERRY_SIDE_DESTINATION, destination, columns, right, HEAD);
    put_foot(&c, HEAD + height + FOOT - 28);
    if (ferror(file) != 0) {
        snprintf(error->message, sizeof error->message, "the picture could not be written");
        return FERRY_ERR_IO;
    }
    return FERRY_OK;
}
