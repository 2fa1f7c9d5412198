/* The comparisons of `zero plan`: the mixes of stage and tiers, and what a rank needs with each. */
#ifndef TOOLS_PLAN_REPORT_H
#define TOOLS_PLAN_REPORT_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "zero/planner.h"
#include "zero/zero.h"

#define PLAN_MIXES 11
#define PLAN_SETTINGS 16
#define PLAN_REMEDIES 3

/* An option of the engine that the line sets. */
typedef struct plan_setting {
    char name[32];
    const char *value;
} plan_setting;

/* One way to train, and what came of it. */
typedef struct plan_mix {
    const char *name; /* "3, state host" */
    zero_engine_options options;
    zero_footprint footprint;
    zero_estimate estimate; /* all 0 where the report says why there is none */
    zero_run_cost cost;     /* likewise, and where no run is asked for */
    bool fits;
    uint64_t deepest; /* layers that fit, at most ZERO_FOOTPRINT_LAYERS_MAX */
    uint64_t largest; /* parameters of the deepest model of this width that fits; 0: none */
} plan_mix;

/* A row, tier or mesh that no engine takes with the options of the line: it is not planned. */
typedef struct plan_refusal {
    const char *name; /* a row of the table; of a search, tiers or a mesh */
    char why[256];
} plan_refusal;

/* A change with which something fits, where nothing does. */
typedef struct plan_remedy {
    char words[96];      /* "--nodes 4": of the line */
    zero_search *search; /* with it */
} plan_remedy;

typedef struct plan_report {
    const char *model; /* as named on the line */
    const char *cluster_name;
    zero_transformer transformer;
    zero_cluster cluster;
    zero_batch batch;
    zero_engine_options options; /* of every mix, with the settings */
    zero_tuning tuning;
    plan_setting settings[PLAN_SETTINGS];
    uint32_t setting_count;
    uint64_t parameters;
    uint64_t parameters_used;
    uint32_t ranks; /* of the cluster */
    uint32_t world; /* of these, those that hold one part of the model: an engine's */
    plan_mix mixes[PLAN_MIXES];
    uint32_t mix_count;
    const plan_mix *recommended; /* the first that fits; NULL: none does */
    plan_refusal refused[PLAN_MIXES];
    uint32_t refused_count;
    char untimed[256];                      /* why there are no times; empty: there are */
    zero_run run;                           /* 0 tokens: none is asked for */
    uint32_t held;                          /* axes of a search that the line decides */
    uint64_t step_samples;                  /* of a search */
    zero_search *search;                    /* NULL: there was none */
    zero_run_cost costs[ZERO_SEARCH_PLANS]; /* of its plans */
    char unsearched[256];                   /* why not, where it was to be; empty: there was one */
    plan_remedy remedies[PLAN_REMEDIES];
    uint32_t remedy_count;
} plan_report;

/* A line of `zero plan`, or of `zero sim`, which trains in one way. */
typedef struct plan_line {
    const char *words[2]; /* model, cluster */
    uint32_t word_count;
    uint64_t nodes; /* 0: the cluster's own */
    uint64_t samples;
    uint64_t sequence;
    uint64_t micro_steps;
    zero_engine_options options;
    zero_tuning tuning;
    plan_setting settings[PLAN_SETTINGS];
    uint32_t setting_count;
    zero_transformer_units units;
    uint64_t tensor; /* 0: 1 */
    uint64_t pipeline;
    uint64_t expert;
    zero_batch mesh; /* all fields but those above */
    bool searches;
    bool searches_never;  /* not even where nothing fits */
    bool largest;         /* the only word is a cluster */
    uint64_t step_tokens; /* of a search; 0: those of the batch */
    zero_run run;
    const char *json_path;
    const char *html_path;
    bool simulates; /* set before it is read */
    zero_sim_options sim;
} plan_line;

/* plan_line.c. As line_read of line_table.h. */
int plan_line_read(int argc, char **argv, plan_line *line);
/* 0, or 1 after bench_fail. */
int plan_line_describe(const plan_line *line, plan_report *report);
int plan_cluster_read(const char *word, uint64_t nodes, zero_cluster *cluster);
const char *plan_units_name(zero_transformer_units units);
void plan_line_print_names(void); /* of models and clusters, for help */
/* plan_search.c. Searches, for what would fit too where nothing does, and makes the costs of a run.
 * 0, or 1 after bench_fail. */
int plan_search(plan_report *report);
void plan_search_close(plan_report *report);
/* plan_largest.c. The table of `zero plan --largest`; the exit status. */
int plan_largest(const plan_line *line);
/* plan_json.c. A new reference; NULL: no memory. */
json_t *plan_json(const plan_report *report);
/* plan_model.c */
bool plan_names_file(const char *word);
int plan_model_read(const char *word, zero_transformer *transformer); /* 0, or 1: bench_fail */
void plan_model_print_help(void);                                     /* names of dimensions */

#endif
