"""An emulated GPU for real SGLang on a CPU. It runs no kernels; it only models the time they would take."""
