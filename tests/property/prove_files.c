/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * prove_files
 *
 * Proves plans against specs: each line of standard input is the path of a spec, a blank and the
 * path of a plan. Each is proven element by element and by cells; a line on standard output is the
 * status by name, and then the sentence of the first way. Where the two ways differ it ends with
 * status 1.
 */
#include "prove/prove.h"

#include <stdio.h>
#include <string.h>

int main(void)
{
    char line[4096];
    while (fgets(line, sizeof line, stdin) != NULL) {
        ferry_error errors[2] = {{""}, {""}};
        ferry_status statuses[2];
        char *plan = strchr(line, ' ');
        if (plan == NULL) {
            fprintf(stderr, "prove_files: no plan in: %s", line);
            return 2;
        }
        *plan++ = '\0';
        plan[strcspn(plan, "\n")] = '\0';
        for (int way = 0; way < 2; way++) {
            statuses[way] = fy_proof_run(line, plan, way == 0 ? FY_PROOF_SMALL_SHARD : 0, NULL,
                                         NULL, &errors[way]);
        }
        printf("%s %s\n", ferry_status_name(statuses[0]), errors[0].message);
        fflush(stdout);
        if (statuses[0] != statuses[1]) {
            fprintf(stderr, "prove_files: by cells it is %s: %s\n", ferry_status_name(statuses[1]),
                    errors[1].message);
            return 1;
        }
    }
    return 0;
}
