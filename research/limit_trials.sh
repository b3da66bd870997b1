cd "${REPO:-.}"; export PYTHONPATH=src PARACOND_INCEPTION="$KEEP"/a/inc/inception16.pt PYTHONUNBUFFERED=1
L="$KEEP"/out; mkdir -p $L
python3 research/codes_trial.py --model "$KEEP"/b/m/fashion --data "$KEEP"/b/fashion --updates 8000 --out $L > $L/codes.log 2>&1 &
(python3 research/limit_trial.py --data "$KEEP"/b/fashion --change '{"updates":25000}' --spread 4 --label paper_f4 --short > $L/paper_f4.log 2>&1
 python3 research/limit_trial.py --data "$KEEP"/b/fashion --change '{"updates":25000}' --spread 0 --label paper_f0 --short > $L/paper_f0.log 2>&1) &
(python3 research/limit_trial.py --preset best --data "$KEEP"/b/fashion --compile --change '{"updates":40000,"chain_length":[2,2]}' --label best_n2 --short --out $L > $L/best_n2.log 2>&1
 python3 research/limit_trial.py --preset best --data "$KEEP"/b/fashion --compile --change '{"updates":40000,"chain_length":[4,4]}' --label best_n4 --short --out $L > $L/best_n4.log 2>&1) &
wait
