"""Scores of answers: FID; accuracy, F1 and PSNR."""
