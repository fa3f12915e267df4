/* All CUDA bodies as tess_emulated_<body>, for the CPU; each file in a namespace of its own, since they are compiled
 * apart otherwise. Products are loops. */
#define TESS_EMULATED
#define TESS_CUDA_NAME(body) tess_emulated_##body
#define tess_cuda_mm_run     tess_emulated_mm_run
#include "exact_impl.h"
#include "reduce_impl.h"
#include "tensor_impl.h"

bool tess_cuda_mm_run(const tess_work *, const tess_cuda_mm *d, const void *a, const void *b, void *c)
{
    std::vector<float> sum(d->n);
    for (int64_t i = 0; i < d->m; i++) {
        std::fill(sum.begin(), sum.end(), 0.0f);
        for (int64_t k = 0; k < d->k; k++) {
            float x[1], y[1];
            const int64_t at = d->ta ? k * d->lda + i : i * d->lda + k;
            if (d->in == TESS_BF16)
                load<TESS_BF16, 1>(x, a, at);
            else
                load<TESS_F32, 1>(x, a, at);
            for (int64_t j = 0; j < d->n; j++) {
                const int64_t from = d->tb ? j * d->ldb + k : k * d->ldb + j;
                if (d->in == TESS_BF16)
                    load<TESS_BF16, 1>(y, b, from);
                else
                    load<TESS_F32, 1>(y, b, from);
                sum[j] += x[0] * y[0];
            }
        }
        for (int64_t j = 0; j < d->n; j++) {
            float v[1] = {sum[j] + (d->bias ? d->bias[j] : 0)};
            if (d->out == TESS_BF16)
                accumulate<TESS_BF16, 1>(c, i * d->ldc + j, d->acc, v);
            else
                accumulate<TESS_F32, 1>(c, i * d->ldc + j, d->acc, v);
        }
    }
    return false; /* column sums are the caller's */
}

#define BODIES(name)                                                                                                   \
    namespace name##_bodies                                                                                            \
    {
BODIES(adamw)
#include "adamw.cu"
}
BODIES(attention)
#include "attention.cu"
}
BODIES(cross_entropy)
#include "cross_entropy.cu"
}
BODIES(dropout)
#include "dropout.cu"
}
BODIES(elementwise)
#include "elementwise.cu"
}
BODIES(embedding)
#include "embedding.cu"
}
BODIES(exact)
#include "exact.cu"
}
BODIES(fill)
#include "fill.cu"
}
BODIES(finite)
#include "finite.cu"
}
BODIES(gelu)
#include "gelu.cu"
}
BODIES(layernorm)
#include "layernorm.cu"
}
BODIES(linear)
#include "linear.cu"
}
BODIES(pick)
#include "pick.cu"
}
BODIES(rmsnorm)
#include "rmsnorm.cu"
}
BODIES(rope)
#include "rope.cu"
}
BODIES(silu)
#include "silu.cu"
}
BODIES(tree)
#include "tree.cu"
}
