// A device plugin that offers devices to the kubelet of its node and gives none as long as a file is there:
//
//	device-plugin example.com/device 2 FILE
package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	plugin "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

const socket = plugin.DevicePluginPath + "test.sock"

type server struct {
	plugin.UnimplementedDevicePluginServer
	count int
	file  string
}

func (s *server) GetDevicePluginOptions(context.Context, *plugin.Empty) (*plugin.DevicePluginOptions, error) {
	return &plugin.DevicePluginOptions{}, nil
}

func (s *server) ListAndWatch(_ *plugin.Empty, stream plugin.DevicePlugin_ListAndWatchServer) error {
	devices := make([]*plugin.Device, s.count)
	for i := range devices {
		devices[i] = &plugin.Device{ID: strconv.Itoa(i), Health: plugin.Healthy}
	}
	if err := stream.Send(&plugin.ListAndWatchResponse{Devices: devices}); err != nil {
		return err
	}
	<-stream.Context().Done()
	return nil
}

func (s *server) Allocate(_ context.Context, asked *plugin.AllocateRequest) (*plugin.AllocateResponse, error) {
	if _, err := os.Stat(s.file); err == nil {
		return nil, fmt.Errorf("the device does not answer")
	}
	answer := &plugin.AllocateResponse{}
	for range asked.ContainerRequests {
		answer.ContainerResponses = append(answer.ContainerResponses, &plugin.ContainerAllocateResponse{})
	}
	return answer, nil
}

func run(name, count, file string) error {
	n, err := strconv.Atoi(count)
	if err != nil {
		return err
	}
	os.Remove(socket)
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return err
	}
	grpcServer := grpc.NewServer()
	plugin.RegisterDevicePluginServer(grpcServer, &server{count: n, file: file})
	done := make(chan error)
	go func() { done <- grpcServer.Serve(listener) }()
	kubelet, err := grpc.NewClient("unix:"+plugin.KubeletSocket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer kubelet.Close()
	_, err = plugin.NewRegistrationClient(kubelet).Register(context.Background(), &plugin.RegisterRequest{
		Version: plugin.Version, Endpoint: filepath.Base(socket), ResourceName: name})
	if err != nil {
		return err
	}
	return <-done
}

func main() {
	if len(os.Args) != 4 {
		fmt.Fprintln(os.Stderr, "usage: device-plugin NAME COUNT FILE")
		os.Exit(64)
	}
	if err := run(os.Args[1], os.Args[2], os.Args[3]); err != nil {
		fmt.Fprintln(os.Stderr, "device-plugin:", err)
		os.Exit(1)
	}
}
