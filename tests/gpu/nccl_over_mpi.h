/* As much of NCCL and CUDA as runtime/messages/nccl.c calls, over MPI and host memory: nccl.c is compiled a second time
 * with this header in their place, and runs where there is no GPU. Every rank has one GPU, whose memory is RAM. In a
 * build for emulated GPUs there is CUDA as those have it, and groups run on their streams. */
#ifndef TESS_TESTS_NCCL_OVER_MPI_H
#define TESS_TESTS_NCCL_OVER_MPI_H
#include <stdbool.h>
#include <stddef.h>

#define LIBRARY NULL /* the program itself, where dlsym finds what follows */
#ifdef TESS_EMULATED_GPU
#include <cuda_runtime_api.h>
#endif

typedef struct ncclComm *ncclComm_t;
typedef struct {
    char internal[128];
} ncclUniqueId;
typedef enum {
    ncclSuccess = 0,
    ncclSystemError = 2,
    ncclInvalidArgument = 4,
    ncclInvalidUsage = 5,
    ncclInProgress = 7
} ncclResult_t;
typedef enum { ncclChar = 0 } ncclDataType_t;
typedef struct {
    int blocking, maxCTAs;
} ncclConfig_t;
#define NCCL_VERSION_CODE 22000
#define NCCL_CONFIG_INITIALIZER                                                                                        \
    {                                                                                                                  \
        1, 0                                                                                                           \
    }

#ifndef TESS_EMULATED_GPU
/* Under names of its own, since StarPU's headers may bring CUDA's. */
#define cudaError_t                      over_mpi_error
#define cudaSuccess                      OVER_MPI_SUCCESS
#define cudaErrorNotReady                OVER_MPI_NOT_READY
#define cudaStream_t                     over_mpi_stream
#define cudaEvent_t                      over_mpi_event
#define cudaStreamNonBlocking            1
#define cudaEventDisableTiming           2
#define cudaSetDevice                    over_mpi_set_device
#define cudaDeviceGetStreamPriorityRange over_mpi_priorities
#define cudaStreamCreateWithPriority     over_mpi_stream_new
#define cudaStreamDestroy                over_mpi_stream_free
#define cudaEventCreateWithFlags         over_mpi_event_new
#define cudaEventDestroy                 over_mpi_event_free
#define cudaEventRecord                  over_mpi_event_record
#define cudaEventQuery                   over_mpi_event_query
#define cudaGetErrorString               over_mpi_error_string
#define tess_gpu_first                   over_mpi_gpu_first
#define tess_gpu_first_node              over_mpi_gpu_first_node

typedef enum { OVER_MPI_SUCCESS, OVER_MPI_NOT_READY } over_mpi_error;
typedef struct over_mpi_stream *over_mpi_stream;
typedef struct over_mpi_event *over_mpi_event;

cudaError_t cudaSetDevice(int device);
cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *most);
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int priority);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream);
cudaError_t cudaEventQuery(cudaEvent_t event);
const char *cudaGetErrorString(cudaError_t error);
bool tess_gpu_first(int *device, char *name, int room);
unsigned tess_gpu_first_node(void);
#endif

ncclResult_t ncclGetVersion(int *version);
ncclResult_t ncclGetUniqueId(ncclUniqueId *id);
ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int ranks, ncclUniqueId id, int rank, ncclConfig_t *config);
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *error);
ncclResult_t ncclCommFinalize(ncclComm_t comm);
ncclResult_t ncclCommDestroy(ncclComm_t comm);
ncclResult_t ncclCommAbort(ncclComm_t comm);
ncclResult_t ncclGroupStart(void);
ncclResult_t ncclGroupEnd(void);
ncclResult_t ncclSend(const void *data, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream);
ncclResult_t ncclRecv(void *data, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream);
const char *ncclGetLastError(ncclComm_t comm);
const char *ncclGetErrorString(ncclResult_t result);

/* Nobody calls them by name: that the archive's member is linked. */
__attribute__((used)) static ncclResult_t (*const over_mpi_is_linked)(int *) = ncclGetVersion;
#endif
