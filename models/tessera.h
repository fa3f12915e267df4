/* Tessera trains networks larger than the GPU, and larger than RAM. A network is described as if it ran on one device
 * with endless memory; where its tiles live (RAM, disk, GPU, another rank) is a plan, and its bits do not depend on it.
 * This program describes a network and trains it with the optimizer's states on disk, or, if it is given a
 * configuration of the command, trains as that says:
 *
 *     #include <tessera.h>
 *
 *     enum { B = 4, T = 16, C = 64, V = 32, STEPS = 100 }; // sequences, tokens of one, width, vocabulary
 *
 *     static tess_status train(void)
 *     {
 *         tess_graph *g = tess_graph_new(&(tess_graph_conf){.dtype = TESS_F32});
 *         tess_tensor *ids = tess_input(g, "ids", B, T), *next = tess_input(g, "next", B, T); // (B, T)
 *         tess_tensor *table = tess_param(g, "table", V, C, TESS_NORMAL(0.1f));               // (V, C)
 *         tess_tensor *w = tess_param(g, "w", C, C, TESS_NORMAL(0.1f)), *b = tess_param(g, "b", C, 1, TESS_ZERO);
 *         tess_tensor *x = tess_embedding(ids, table, NULL);                                  // (B, T, C)
 *         x = tess_add(x, tess_gelu(tess_linear(x, w, b), TESS_GELU_TANH));
 *         tess_tensor *loss = tess_cross_entropy(x, table, NULL, next);
 *
 *         tess_machine machine = {.cpu_bytes = 256 << 20, .disk = ".", .away = TESS_AWAY_MOMENTS};
 *         tess_step_conf conf = {.train = true, .optimizer = tess_adamw()};
 *         tess_step *s;
 *         tess_plan plan;
 *         TESS_TRY(tess_step_fit(loss, &conf, &machine, &s, &plan));
 *         TESS_TRY(tess_start_plan(&machine, &plan));
 *         TESS_TRY(tess_graph_init(g, 1));
 *         for (int64_t step = 0; step < STEPS; step++) {
 *             int32_t token[B * T], target[B * T]; // it learns to count by three
 *             for (int k = 0; k < B * T; k++) token[k] = (int32_t)(step + k) % V, target[k] = (token[k] + 3) % V;
 *             tess_step_result r;
 *             TESS_TRY(tess_step_feed(s, ids, token));
 *             TESS_TRY(tess_step_feed(s, next, target));
 *             TESS_TRY(tess_step_run(s, &(tess_step_input){.step = step, .lr = 1e-2}, &r));
 *             if (step % 10 == 9) printf("step %d  loss %.4f\n", (int)step + 1, r.loss);
 *         }
 *         TESS_TRY(tess_graph_save(g, "model")); // model/model.safetensors
 *         tess_step_free(s);
 *         tess_graph_free(g);
 *         return TESS_OK;
 *     }
 *
 *     static tess_status train_by(const char *file, char **settings, int count) // run.json steps=10 ...
 *     {
 *         tess_config *c;
 *         TESS_TRY(tess_config_open(file, (const char *const *)settings, (size_t)count, tess_ranks(), &c));
 *         tess_status status = tess_train(c);
 *         tess_config_close(c);
 *         return status;
 *     }
 *
 *     int main(int argc, char **argv)
 *     {
 *         tess_status status = argc > 1 ? train_by(argv[1], argv + 2, argc - 2) : train();
 *         tess_stop();
 *         if (status != TESS_OK) fprintf(stderr, "%s\n", tess_error_text());
 *         return (int)status;
 *     }
 *
 *     // cc example.c $(pkg-config --cflags --libs tessera)
 *
 * Conventions. A function that can fail returns a tess_status; tess_error_text() is then one line that names what was
 * wrong. Pointers stay the caller's, unless a comment says that the callee takes them. Structs of settings may be
 * zeroed: a zero is the default. All calls come from the main thread.
 *
 * What is stable. These six headers, in the order of need, keep their names and meanings from version to version, but
 * for what CHANGELOG.md names, which a major version alone may change: what compiles against them compiles against the
 * next version. Only sections that say "may still change" may do so with a minor one. Structs of settings may gain
 * members at their end, so they are set by name, and a program is compiled again for a new minor version. Programs use
 * no other symbols of the library.
 *
 * runtime/tessera_runtime.h: errors, the machine, start and stop, several ranks.
 * codelets/tessera_codelets.h: optimizers, settings of ops.
 * graph/tessera_graph.h: a network described, planned and trained; its values.
 * models/networks/tessera_networks.h: models by name and their weights.
 * models/train/tessera_train.h: saved, loaded, resumed; the command by call; a run step by step.
 * graph/tessera_ops.h: ops of the program's own, experts, generation. */
#ifndef TESSERA_H
#define TESSERA_H
#include "graph/tessera_ops.h"
#include "models/networks/tessera_networks.h"
#include "models/train/tessera_train.h"
#endif
