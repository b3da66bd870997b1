"""Other learners of the same models, and known algorithms that are special cases of ours."""
