"""Pipeline schedules: order of work and micro-batches in flight. One file each."""
