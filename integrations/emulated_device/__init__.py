"""An emulated GPU under real SGLang on a CPU: no kernels, only the seconds that they would take."""
