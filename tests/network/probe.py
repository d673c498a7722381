# Tries each KIND HOST PORT of its arguments and says what came of it. It takes the module below `socket`, which an
# emulated guest imports many times faster.
import _socket as socket, sys
args = sys.argv[1:]
for kind, host, port in zip(args[::3], args[1::3], args[2::3]):
    try:
        type_ = socket.SOCK_STREAM if kind == 'tcp' else socket.SOCK_DGRAM
        failed = None
        for family, _, _, _, address in socket.getaddrinfo(host, int(port), 0, type_):
            s = socket.socket(family, type_)
            s.settimeout(20)
            try:
                s.connect(address)
            except OSError as e:
                failed = e
            else:
                break
        else:
            raise failed
        s.send(b'ping')
        print(kind, host, port, s.recv(100).decode(), flush=True)
    except OSError as e:
        print(kind, host, port, 'failed', type(e).__name__, flush=True)
