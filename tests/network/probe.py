# Tries each KIND HOST PORT of its arguments and says what came of it.
import socket, sys
args = sys.argv[1:]
for kind, host, port in zip(args[::3], args[1::3], args[2::3]):
    try:
        if kind == 'tcp':
            s = socket.create_connection((host, int(port)), timeout=20)
        else:
            s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            s.settimeout(20)
            s.connect((host, int(port)))
        s.sendall(b'ping')
        print(kind, host, port, s.recv(100).decode(), flush=True)
    except OSError as e:
        print(kind, host, port, 'failed', type(e).__name__, flush=True)
