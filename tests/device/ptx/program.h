/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FERRY_TESTS_DEVICE_PTX_PROGRAM_H
#define FERRY_TESTS_DEVICE_PTX_PROGRAM_H

#include "device/ptx/ptx.h"

/*
 * PTX that has been read: kernels of instructions whose operands are numbers of registers, or
 * numbers. Registers hold their bits, and zeros above.
 */
typedef struct ptx_thread ptx_thread;
typedef struct ptx_instruction ptx_instruction;

enum {
    PTX_NAME_BYTES = 96,
    PTX_MOST_VALUES = 4, /* of a vector, and sources of an instruction */
    PTX_MOST_THREADS = 1024,
    PTX_MOST_VARIABLES = 64,
    PTX_MOST_FAMILIES = 256 /* of registers, declared together */
};

/* What an operand's `reg` says where it is no register. */
enum { PTX_NUMBER = -1, PTX_SPECIAL = -2, PTX_SINK = -3 };

typedef enum ptx_special {
    PTX_TID,
    PTX_NTID,
    PTX_CTAID,
    PTX_NCTAID,
    PTX_LANEID,
    PTX_TIMER,
    PTX_IS_ZERO /* .y and .z of places, where all is flat */,
    PTX_IS_ONE
} ptx_special;

typedef struct ptx_operand {
    int32_t reg;
    uint64_t number; /* or which special register */
} ptx_operand;

typedef enum ptx_space { PTX_GENERIC, PTX_GLOBAL, PTX_SHARED, PTX_LOCAL, PTX_PARAM } ptx_space;
typedef enum ptx_order { PTX_WEAK, PTX_RELAXED, PTX_ACQUIRE, PTX_RELEASE, PTX_BOTH } ptx_order;

/* Generic addresses of shared and local memory; what is elsewhere is global. */
#define PTX_SHARED_WINDOW UINT64_C(0xf100000000000000)
#define PTX_LOCAL_WINDOW UINT64_C(0xf200000000000000)
#define PTX_WINDOW_BYTES (UINT64_C(1) << 32)

/* A number of up to four others. */
typedef uint64_t (*ptx_reckon)(uint64_t a, uint64_t b, uint64_t c, uint64_t d);
typedef void (*ptx_perform)(ptx_thread *thread, const ptx_instruction *one);

typedef struct ptx_access {
    ptx_space space;
    ptx_order order;
    uint32_t bytes, n; /* of each element, and how many */
    bool is_signed;
} ptx_access;

struct ptx_instruction {
    ptx_perform perform;
    ptx_reckon reckon;
    int32_t guard; /* a predicate, or PTX_NUMBER: always */
    bool guard_is_not;
    bool divides;      /* the second source must not be 0 */
    bool from_generic; /* of an address, and not to it */
    bool of_pairs;     /* of multimem: an element is two numbers of 16 bits */
    uint8_t n_targets, n_sources;
    uint32_t line, jump;
    uint64_t mask; /* the bits that the target's type has */
    int32_t targets[PTX_MOST_VALUES];
    ptx_operand sources[PTX_MOST_VALUES];
    ptx_access access;
    ptx_operand base; /* of an access: its address is base + offset */
    int64_t offset;
};

/* A row of the tables of instructions that make a number of numbers. */
typedef struct ptx_row {
    const char *name;
    /*
     * "w=ww": the target, and sources; p for predicates, h, w and d for registers of 16, 32 and 64
     * bits. With "!" at the end the second source must not be 0.
     */
    const char *shape;
    ptx_reckon reckon;
} ptx_row;

/* The row with a name; NULL: there is none. */
const ptx_row *ptx_find_row(const ptx_row *rows, size_t n, const char *name);
const ptx_row *ptx_integer_row(const char *name);
const ptx_row *ptx_float_row(const char *name);
/* What an atomic operation ("add", "u32") makes of the word that is there and its operands. */
ptx_reckon ptx_atomic(const char *operation, const char *type);

/* Variables of shared and local memory, with room between them that is nobody's. */
typedef struct ptx_variable {
    char name[PTX_NAME_BYTES];
    ptx_space space;
    uint32_t begin, bytes;
} ptx_variable;

typedef struct ptx_family {
    char name[PTX_NAME_BYTES]; /* of one register, or what numbers follow */
    uint32_t first, count;     /* count 0: one register of that name */
    uint32_t bits;             /* 1: predicates */
    uint32_t depth;            /* of the braces around it */
} ptx_family;

struct ptx_kernel {
    ptx_kernel *next;
    const ptx_module *module;
    char name[PTX_NAME_BYTES];
    char parameter[PTX_NAME_BYTES];
    uint32_t argument_bytes, most_threads;
    bool has_barrier;
    uint32_t n_registers;
    ptx_family *families; /* of all depths */
    uint32_t n_families;
    ptx_instruction *code;
    uint32_t n_code, room;
};

struct ptx_module {
    ptx_kernel *kernels;
    ptx_variable variables[PTX_MOST_VARIABLES];
    uint32_t n_variables;
    uint32_t shared_bytes, local_bytes;
    uint32_t target;
};

/*
 * Running
 */

typedef enum ptx_state {
    PTX_GOES,
    PTX_PAUSES,
    PTX_AT_BARRIER,
    PTX_OVER,
    PTX_STOPPED /* with a fault */
} ptx_state;

/* Bytes of variables, and which of them were written. */
typedef struct ptx_room {
    unsigned char *bytes, *is_written;
} ptx_room;

typedef struct ptx_run_state {
    const ptx_kernel *kernel;
    ptx_launch *launch;
    ptx_end end;
    char *said;
    uint64_t draws;
} ptx_run_state;

typedef struct ptx_block {
    ptx_run_state *run;
    uint32_t number;
    uint32_t n_waiting, n_over;
    ptx_room shared;
    ptx_thread *threads;
} ptx_block;

/* What multimem has stored, and no thread sees yet. */
typedef struct ptx_late {
    uint64_t at;
    uint32_t bytes;
    unsigned char value[16];
} ptx_late;

struct ptx_thread {
    ptx_block *block;
    ptx_late *late;
    uint32_t n_late, late_room;
    uint32_t number, at;
    ptx_state state;
    uint64_t *values;
    uint32_t *stamps; /* the register was written if its stamp is the thread's */
    uint32_t stamp;
    ptx_room local;
};

/* The launch ends with this thread's instruction; the first fault counts. */
void ptx_fault(ptx_thread *thread, ptx_end end, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
void ptx_fault_unwritten(ptx_thread *thread, int32_t reg);
/* A special register by its name, as an operand; false: there is none. */
bool ptx_special_find(const char *name, ptx_operand *value_out, uint32_t *bits_out);
uint64_t ptx_special_value(const ptx_thread *thread, ptx_special which);

static inline uint64_t ptx_value(ptx_thread *thread, const ptx_operand *operand)
{
    if (operand->reg >= 0) {
        if (thread->stamps[operand->reg] != thread->stamp) {
            ptx_fault_unwritten(thread, operand->reg);
        }
        return thread->values[operand->reg];
    }
    return operand->reg == PTX_NUMBER ? operand->number
                                      : ptx_special_value(thread, (ptx_special)operand->number);
}

static inline void ptx_put(ptx_thread *thread, int32_t reg, uint64_t value)
{
    if (reg >= 0) {
        thread->values[reg] = value;
        thread->stamps[reg] = thread->stamp;
    }
}

/* access.c: what is performed; the decoder names them. */
void ptx_perform_load(ptx_thread *thread, const ptx_instruction *one);
void ptx_perform_store(ptx_thread *thread, const ptx_instruction *one);
void ptx_perform_atomic(ptx_thread *thread, const ptx_instruction *one);

/* multimem.c */
bool ptx_decode_multimem(const char *name, ptx_instruction *one, bool *loads_out);
void ptx_perform_settle(ptx_thread *thread, const ptx_instruction *one);

/* perform.c */
ptx_perform ptx_perform_of(uint32_t n_sources);
void ptx_perform_pack(ptx_thread *thread, const ptx_instruction *one);
void ptx_perform_unpack(ptx_thread *thread, const ptx_instruction *one);
void ptx_perform_jump(ptx_thread *thread, const ptx_instruction *one);
void ptx_perform_end(ptx_thread *thread, const ptx_instruction *one);
void ptx_perform_barrier(ptx_thread *thread, const ptx_instruction *one);
void ptx_perform_pause(ptx_thread *thread, const ptx_instruction *one);
void ptx_perform_trap(ptx_thread *thread, const ptx_instruction *one);
void ptx_perform_window(ptx_thread *thread, const ptx_instruction *one);

#endif
