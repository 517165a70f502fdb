"""Code generation: a stage to readable Python source. One pass, one file."""
