"""What all experiments share: results, reports, timing."""
