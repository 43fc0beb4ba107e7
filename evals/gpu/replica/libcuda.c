/* A stand-in for the driver's library, so that SGLang's kernels load where there is no GPU. */
int cuInit(unsigned flags) { return 0; }
int cuPointerGetAttribute(void) { return 100; /* CUDA_ERROR_NO_DEVICE */ }
