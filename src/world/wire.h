/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_WORLD_WIRE_H
#define FY_WORLD_WIRE_H

#include "base/bytes.h"

/* The control messages between processes. */
typedef enum fy_wire_type {
    FY_WIRE_KNOCK = 15,    /* to the root: which world do you make? */
    FY_WIRE_WORLD = 16,    /* from the root: its name, by which the ranks of a node meet */
    FY_WIRE_JOIN = 1,      /* to the root: who I am, what I believe, where I listen */
    FY_WIRE_PLACE = 2,     /* from the root: who your parent is */
    FY_WIRE_ATTACH = 3,    /* to the parent: I am your child */
    FY_WIRE_ATTACHED = 4,  /* to the root: my parent has me */
    FY_WIRE_TABLE = 5,     /* down: who is where */
    FY_WIRE_FAIL = 6,      /* everywhere: the world has failed */
    FY_WIRE_UP = 7,        /* up: a subtree's part of a collective */
    FY_WIRE_DOWN = 8,      /* down: the result of a collective */
    FY_WIRE_SEND = 9,      /* a small message, on its way */
    FY_WIRE_BEAT = 10,     /* a sign of life */
    FY_WIRE_LEAVE = 11,    /* up: my whole subtree leaves */
    FY_WIRE_DONE = 12,     /* down: everybody has left */
    FY_WIRE_QUERY = 13,    /* who has not entered the collective? */
    FY_WIRE_MISSING = 14,  /* the answer, on its way to who asked */
    FY_WIRE_ASK = 17,      /* to anybody's door: how far is this world with you? */
    FY_WIRE_STANDING = 18, /* the answer; from a world that has failed also why */
    FY_WIRE_NEWS = 19,     /* to anybody's door: this world has failed, and the tree may be cut */
    FY_WIRE_WHERE = 20,    /* in the tree: where are you? A small message answers */
    FY_WIRE_ENTER = 21,    /* to the root of a world that grows: I am new, which rank am I? */
    FY_WIRE_NUMBER = 22,   /* the answer: that, who all ranks are, their deadline */
    FY_WIRE_VAIN = 23,     /* everywhere: a member does not come to the larger world, and why */
} fy_wire_type;

#endif
