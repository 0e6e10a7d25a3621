#include "plan/core.h"
#include "base/json.h"
void ferry_roster_destroy(ferry_roster *r){(void)r;}
ferry_status fy_roster_from_json(const json_t *json, const fy_json_place *place, ferry_roster **roster_out, ferry_error *error){(void)json;(void)place;(void)roster_out;(void)error;return FERRY_ERR_UNSUPPORTED;}
void fy_roster_write(const ferry_roster *roster, fy_writer *writer){(void)roster;(void)writer;}
ferry_status ferry_plan_create_from_roster(const ferry_roster *roster,const ferry_plan_options *options,ferry_plan **plan_out, ferry_error *error){(void)roster;(void)options;(void)plan_out;(void)error;return FERRY_ERR_UNSUPPORTED;}
