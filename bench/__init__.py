"""The benchmarks of a checkout: the papers' workloads, and what each part costs by itself."""
