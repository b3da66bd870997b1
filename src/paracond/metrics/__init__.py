"""Distances and scores of answers: FID, accuracy, F1, PSNR."""
