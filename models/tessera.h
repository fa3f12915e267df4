/* Tessera trains networks larger than the GPU, and larger than RAM. A network is described as if it ran on one device
 * with endless memory; where its tiles live (RAM, disk, GPU, another rank) is a plan, and its bits do not depend on it.
 * A program that describes one and trains it, its optimizer's states on disk; or that is given a configuration of the
 * command, and trains what that says:
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
 *
 *         tess_step *s;
 *         tess_machine machine = {.cpu_bytes = 256 << 20, .disk = "."};
 *         TESS_TRY(tess_step_new(tess_cross_entropy(x, table, NULL, next),
 *                                &(tess_step_conf){.train = true, .optimizer = tess_adamw()}, &s));
 *         TESS_TRY(tess_step_fit(s, 1 << TESS_ROLE_MOMENT, &machine));
 *         TESS_TRY(tess_start(&machine));
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
 * Conventions. A function that can fail returns a tess_status; what it failed of is tess_error_text(). Pointers are
 * borrowed unless the comment says that the callee takes them. All is called from the main thread. What the
 * configuration may say is in `tessera train --help`. */
#ifndef TESSERA_H
#define TESSERA_H
/* Errors, start and stop, ranks, the configuration. */
#include "tessera_runtime.h"

/* Tensors, ops, parameters, the step. */
#include "tessera_graph.h"

/* Ops of the program's own. */
#include "tessera_op.h"

/* Models by name, and their weights. */
#include "tessera_networks.h"

/* Graphs to files and back, checkpoints, the command by call. */
#include "tessera_train.h"
#endif
