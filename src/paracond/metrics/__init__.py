"""Scores of answers: FID, accuracy, F1, PSNR."""
