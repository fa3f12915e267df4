/* models: networks by name, their weights and data, and what the command does with them. The room is three, and each
 * knows only those before it:
 *
 *     files/      safetensors, tokenizers, data and directories: bytes on a drive, of whatever network
 *     networks/   families of networks by their config.json, their weights to files and back
 *     train/      a run from its configuration to the trained model: opening, choosing, feeding, steps, checkpoints,
 *                 reports; evaluation, estimates, generation and the other commands
 *
 * What the other rooms may call of it is in the headers below. */
#ifndef TESS_MODELS_H
#define TESS_MODELS_H
#include "graph/graph.h"
#include "models/networks/tessera_networks.h"
#include "models/train/train.h"
#endif
